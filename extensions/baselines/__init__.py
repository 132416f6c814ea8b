"""What a run's model is held against: the base rate, single columns, logistic regression, boosted trees."""

POSITIVES_ALONE = "baselines learn from rows of the split, which are positives alone"  # with data.negatives
