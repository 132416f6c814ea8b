"""What a run's model is held against: the base rate, single columns, logistic regression, boosted trees."""
