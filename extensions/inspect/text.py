"""The proposed schema as YAML with comments, and what the order of the rows means for each way to split them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from data_prep.dataset.options import LabelKind

if TYPE_CHECKING:
    from extensions.inspect.proposal import Proposal

COMMENT_COLUMN = 44
SHOWN_COLUMNS = 4


def schema_text(proposal: Proposal) -> str:
    """Return the YAML; comments say why each column is used as it is."""
    profile, label = proposal.profile, proposal.label
    files = profile.files
    name = files.sources[0].name if len(files.sources) == 1 else f"{len(files.sources)} files"
    lines = [f"# Schema of {name}, proposed by python -m data_prep.inspect. Figures are of {profile.scope()}."]
    lines += [f"# {sentence}" for sentence in order_sentences(proposal)]
    if files.has_text and files.layout.delimiter != ",":
        lines.append(f"delimiter: {json.dumps(files.layout.delimiter)}")
    if files.has_text and not files.layout.header:
        lines.append("header: false")
    if proposal.missing:
        lines.append(_commented(f"missing: {flow(proposal.missing)}", "no value, in every column"))
    lines.append(_commented(f"label: {_label(proposal)}", _label_comment(proposal)))
    if proposal.time is not None:
        column, form = proposal.time
        reference = _reference(proposal, column)
        entry = reference if form is None else {"column": reference, "format": form}
        lines.append(_commented(f"time: {flow(entry)}", "rows are split by it: the newest are held out"))
    for place in ("dense", "sparse"):
        uses = {column: use for column, use in proposal.uses.items() if use.place == place}
        lines += [f"{place}:"] if uses else []
        for column, use in uses.items():
            reasons = [use.reason, *([""] * (len(use.entries) - 1))]
            for entry, reason in zip(use.entries, reasons, strict=True):
                lines.append(_commented(f"  - {_entry(proposal, column, entry)}", reason))
    left_out = {column: use for column, use in proposal.uses.items() if use.place == "out"}
    lines += ["# Left out:"] if left_out else []
    lines += [f"#   {flow(column)}: {use.reason}" for column, use in left_out.items()]
    if label.kind is LabelKind.number:
        lines.append("# Train on these labels with loss=mse train.monitor=rmse.")
    return "".join(f"{_printable(line)}\n" for line in lines)


def flow(value: Any) -> str:
    """Return a value in YAML's flow style, in one line."""
    for allow_unicode in (True, False):  # Without it characters that would end or blank the line are escaped.
        text: str = yaml.safe_dump([value], default_flow_style=True, width=float("inf"), allow_unicode=allow_unicode)
        if text.strip().isprintable():
            break
    return text.strip()[1:-1]


def _printable(line: str) -> str:
    """Return a line without characters that would end it."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _commented(line: str, comment: str) -> str:
    return f"{line:<{COMMENT_COLUMN - 2}}  # {comment}" if comment else line


def _reference(proposal: Proposal, column: str) -> str | int:
    """Return a column's name, or its position in files without names."""
    files = proposal.profile.files
    return column if files.layout.header or not files.has_text else files.layout.names.index(column)


def _entry(proposal: Proposal, column: str, entry: Any) -> str:
    reference = _reference(proposal, column)
    return flow({**entry, "column": reference} if isinstance(entry, dict) else reference)


def _label(proposal: Proposal) -> str:
    label = proposal.label
    entry, reference = label.entry(), _reference(proposal, label.column)
    if label.rule is not None and isinstance(reference, str) and reference.isidentifier():
        return flow(f"{reference} {label.rule}")
    return flow({**entry, "column": reference} if isinstance(entry, dict) else reference)


def _label_comment(proposal: Proposal) -> str:
    label = proposal.label
    return label.reason if label.rate is None else f"{label.rate:.2%} of the rows are positive; {label.reason}"


def order_sentences(proposal: Proposal) -> list[str]:
    """Return how the rows are sorted, and what that means for each way to split them."""
    orders, time = _orders(proposal), proposal.time
    sentences = [f"Rows are {' and '.join(orders)}." if orders else "Rows are in no order that a column shows."]
    if time is not None:
        sentences.append(
            f"data.split.method=time (the default here) trains on older rows and tests on newer ones by {time[0]}."
        )
    else:
        sentences.append("data.split.method=random (the default here) draws each row, so val and test are as train is.")
    consequence = "tests on the last rows of the files"
    if any(order.startswith("sorted by label") for order in orders):
        consequence += ", which have other labels than train: do not use it"
    elif any(order.startswith("in order of") for order in orders):
        consequence += ", which are the newest"
    elif any(order.startswith("grouped") for order in orders):
        consequence += ", of groups that train does not have"
    sentences.append(f"data.split.method=fraction {consequence}.")
    sentences += [
        f"data.split.method=group data.split.column={name} keeps all rows of a value of {name} in one split, to test "
        "on new values; random and time test on those that train has."
        for name in proposal.groups[:SHOWN_COLUMNS]
    ]
    if proposal.label.rate is not None and proposal.label.rate < 0.02:
        sentences.append("data.split.method=stratified gives each split the same share of the rare positive rows.")
    return sentences


def _orders(proposal: Proposal) -> list[str]:
    """Return the ways in which the rows are sorted."""
    orders = []
    columns, label = proposal.profile.columns, proposal.label
    if label.kind is LabelKind.click and (columns[label.column].runs == len(columns[label.column].distinct)):
        orders.append(f"sorted by label ({label.column})")
    for name, figures in columns.items():
        if figures.is_time and not figures.missing and not figures.descents and len(figures.distinct) > 2:
            orders.append(f"in order of {name}")
    orders += [
        f"grouped by {name} (all rows of a value follow each other)"
        for name in proposal.groups
        if columns[name].distinct.is_exact and columns[name].runs == len(columns[name].distinct)
    ]
    return orders
