"""Sizes for people."""


def in_words(num_bytes: float) -> str:
    """Such as 15.3 GB: in the largest unit of which there is one; decimal, as disks and mirrors count."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.1f} TB"
