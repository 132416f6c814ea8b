"""`published`: figures that a recipe's source reports and the recipe promises; table sizes as published."""

from dataclasses import dataclass
from typing import ClassVar

from app.kinds.published import PublishedTables
from common.errors import UserError
from common.extensions import rows_of_extensions
from common.keys import key

_CRITEO = [f"cat_{i}" for i in range(26)]


def _even(columns: list[str], values: int) -> dict[str, int]:
    """Return tables of these columns, whose numbers of values are known only in total; each has a row for unknown ones.

    How the values are divided among the columns does not change the number of parameters.
    """
    each, remainder = divmod(values, len(columns))
    return {column: each + 1 + (number < remainder) for number, column in enumerate(columns)}


PUBLISHED_TABLES: dict[str, dict[str, int]] = {
    # AMD's blog of 2024, which prints its model: the columns of dac_sample with at most 10,000 values.
    "dac_sample": {
        "cat_0": 541, "cat_1": 497, "cat_4": 145, "cat_5": 12, "cat_6": 7623, "cat_7": 257, "cat_8": 3,
        "cat_10": 3799, "cat_12": 2796, "cat_13": 26, "cat_14": 5238, "cat_16": 10, "cat_17": 2548, "cat_18": 1303,
        "cat_19": 4, "cat_21": 11, "cat_22": 14, "cat_24": 51, "cat_25": 9527,
    },
    # Criteo's Display Advertising Challenge: the values of its 45,840,617 training rows.
    "criteo_kaggle": dict(zip(_CRITEO, (
        1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10,
        5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
    ), strict=True)),
    # Deep-Spark/DeepSparkHub, dlrm/config/official_config.json: a tenth of days 0 and 1.
    "deepspark_3day": dict(zip(_CRITEO, (
        932209, 18814, 13624, 6862, 18488, 3, 6242, 1229, 49, 654428, 96850, 69004, 10, 2134, 7345, 60, 4, 918, 14,
        984280, 320932, 838408, 76380, 8906, 74, 33,
    ), strict=True)),
    # Criteo 1TB with hashes modulo 40,000,000 and then counted (MLPerf 0.7 to 2.1).
    "mlperf_v1": dict(zip(_CRITEO, (
        39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4,
        976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
    ), strict=True)),
    # Criteo 1TB counted and then capped at 40,000,000 (MLPerf 3.0 to 6.0; AMD's benchmark).
    "mlperf_v2": dict(zip(_CRITEO, (
        40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938, 155, 4,
        976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36,
    ), strict=True)),
    # reczoo/Datasets: the values of the training split, according to the parameters that reczoo/BARS logs.
    "criteo_x1": _even([f"C{i}" for i in range(1, 27)], 2_086_277),
    "avazu_x1": _even([f"feat_{i}" for i in range(1, 23)], 1_298_577),
    "movielenslatest_x1": _even(["user_id", "item_id", "tag_id"], 90_236),
    "kgcn_lastfm": {"user": 1_871, "item": 3_811},  # values of its training split and a row for unknown ones
    "ncf_movielens_1m": {"user": 6_041, "item": 3_705},  # likewise
    "tfrs_movielens_100k": {  # likewise
        "movie_id": 1_652, "user_id": 944, "user_gender": 3, "user_zip_code": 796, "user_occupation_text": 22,
        "bucketized_user_age": 8,
    },
    "frappe_x1": _even(["user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country",
                        "city"], 5_379),
}  # fmt: skip


NUM_DENSE = 13  # number of dense features in Criteo's rows …
WITHOUT_DENSE = (  # … and datasets without any
    "avazu_x1",
    "movielenslatest_x1",
    "frappe_x1",
    "kgcn_lastfm",
    "ncf_movielens_1m",
    "tfrs_movielens_100k",
)


@dataclass(frozen=True)
class PublishedConfig:
    """Figures to compare a run with; null if there are none. They do not affect training.

    A run on other data is not measured by them: the report compares only if `train_rows` and `md5` agree.
    """

    decides_bits: ClassVar[bool] = False

    recipe: str | None = key(None, "the recipe's name")
    source: str | None = key(None, "author, place and date of the publication, and its line or table")
    data: str | None = key(None, "the data it was measured on")
    train_rows: int | None = key(
        None, "rows of its training split; null: comparable with a run on any data", at_least=1
    )
    model: str | None = key(
        None, "the measured model if it is another; its figures are then compared, but not required"
    )
    hardware: str | None = key(None, "hardware and precision it was measured with")
    auc: float | None = key(None, "AUC of the evaluated split", within="[0, 1]")
    logloss: float | None = key(None, "logloss of the evaluated split, in nats", above=0)
    test_auc: float | None = key(None, "AUC of the test split, if training evaluates another", within="[0, 1]")
    test_logloss: float | None = key(None, "logloss of the test split, in nats", above=0)
    rmse: float | None = key(None, "RMSE of the evaluated split, if labels are numbers", above=0)
    hr_at_10: float | None = key(None, "HR@10 of the evaluated split over groups of eval.group_by", within="[0, 1]")
    ndcg_at_10: float | None = key(None, "NDCG@10 of the evaluated split over these groups", within="[0, 1]")
    md5: list[str] = key([], "MD5 of the files that it was measured on, of train, val and test; []: any files")
    accuracy: float | None = key(None, "accuracy at a threshold of 0.5", within="[0, 1]")
    samples_per_second: float | None = key(None, "throughput over all devices", above=0)
    num_devices: int | None = key(None, "number of devices with that throughput", at_least=1)
    parameters: int | None = key(None, "number of parameters of the whole model", at_least=1)
    tolerance: float | None = key(
        None, "largest absolute difference of these figures that counts as reproduced", within="[0, 1]"
    )
    least_auc: float | None = key(None, "minimum AUC that the recipe promises on any machine", within="[0, 1]")


def published_tables(name: str) -> PublishedTables:
    """Return table sizes by name."""
    added = {row.name: row for row in rows_of_extensions(PublishedTables)}
    if name in PUBLISHED_TABLES:
        return PublishedTables(name, PUBLISHED_TABLES[name], 0 if name in WITHOUT_DENSE else NUM_DENSE)
    if name not in added:
        raise UserError(f"data.published_tables={name}: must be one of {', '.join((*PUBLISHED_TABLES, *added))}")
    return added[name]
