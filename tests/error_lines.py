"""What a command says on stderr."""


def error_line(stderr: str) -> str:
    """The one line of an error, all there is but for the kernels compiled on a fresh checkout."""
    lines = [line for line in stderr.splitlines() if not line.startswith("compiling ")]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: "), stderr
    return lines[0]
