"""Warnings for held-out values that do not occur in train, from which a model learns nothing."""

from data_prep.dataset.manifest import Manifest
from data_prep.dataset.options import SplitMethod

UNSEEN = "unseen_in_train"  # key of a manifest's `extra`: share of held-out values by feature; None: not counted
NAMED_SHARE = 0.2  # a larger share is reported
SHOWN_COLUMNS = 4


def unseen_values(manifest: Manifest) -> str | None:
    """Return a sentence on columns with many held-out values that are not in train, with a remedy; None if none."""
    shares = manifest.extra.get(UNSEEN) or {}
    large = {name: share for name, share in shares.items() if share > NAMED_SHARE}
    if not large:
        return None
    ordered = sorted(large, key=lambda name: -large[name])
    column_list = ", ".join(f"{name} ({large[name]:.0%})" for name in ordered[:SHOWN_COLUMNS])
    more = f" and {len(large) - SHOWN_COLUMNS} more columns" if len(large) > SHOWN_COLUMNS else ""
    if manifest.encoding.get("split") in [each.value for each in SplitMethod if each.algorithm.reads == "values"]:
        column = manifest.encoding["split_column"]
        remedy = f"the score is of new values, as data.split puts all rows of a value of {column} into one split"
    elif any("split" in source for source in manifest.sources):
        remedy = "the score is of new values, as the files of the splits are given"
    elif manifest.encoding.get("split") in [method.value for method in SplitMethod if method.algorithm.is_random]:
        remedy = "most of them occur once, so no split helps; leave such a column out of data.schema"
    else:
        remedy = (
            "the score is of new values; data.split.method=random divides the rows of values that occur often; leave a "
            "column whose values occur once out of data.schema"
        )
    return f"of the values of val and test these shares are not in train: {column_list}{more}; {remedy}"
