"""The words of a command in a shell script, read without running it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.one_job.tools.megatron.expressions import evaluate_expression
from planner.one_job.tools.megatron.shell import read_command, unknown_variable
from profiles.errors import InputError


def _words(text: str) -> list[str]:
    return list(read_command(text, where="run.sh").words)


def _notes(text: str) -> tuple[str, ...]:
    return read_command(text, where="run.sh").notes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python x.py --tp 8 --bf16", "python x.py --tp 8 --bf16"),
        ("python x.py \\\n  --tp 8 \\\n  --pp 2\n", "python x.py --tp 8 --pp 2"),
        ("python x.py --tp 8 # --pp 2\n", "python x.py --tp 8"),
        ("TP=8\npython x.py --tp $TP --pp ${TP}", "python x.py --tp 8 --pp 8"),
        ("export TP=8 PP=2\npython x.py --tp ${TP} --pp=$PP", "python x.py --tp 8 --pp=2"),
        ('A="--tp 8 \\\n --pp 2"\npython x.py $A --bf16', "python x.py --tp 8 --pp 2 --bf16"),
        ("A=(\n  --tp 8 # eight\n  --pp 2\n)\nA+=(--bf16)\npython x.py ${A[@]}", "python x.py --tp 8 --pp 2 --bf16"),
        ('A=("--fp8 hybrid" "--split \'99,1\'")\npython x.py "${A[@]}"', "python x.py --fp8 hybrid --split 99,1"),
        ("TP=${TP:-4}\npython x.py --tp $TP", "python x.py --tp 4"),
        ("python x.py --data $1 --load ${DIR}/a", "python x.py --data $1 --load ${DIR}/a"),
        ("N=4\nG=8\npython x.py --world $(($N*G)) --half $((N / 2))", "python x.py --world 32 --half 2"),
        ("--tp 8\n--pp 2\n\n--bf16", "--tp 8 --pp 2 --bf16"),
        ("mkdir -p --verbose a && python x.py --tp 8 --pp 2 | tee --append log", "python x.py --tp 8 --pp 2"),
        ("python x.py --tp 8 2>&1 | tee log", "python x.py --tp 8 2>&1"),
        ("cat <<EOF\nit's --a --b --c\nEOF\npython x.py --tp 8 --pp 2", "python x.py --tp 8 --pp 2"),
        ("A=1\nif [[ $A == 1 ]]; then\n B=2\nelse\n B=3\nfi\npython x.py --tp $B", "python x.py --tp 2"),
        ('A=1\nif [ $A -gt 4 ]; then B=2; elif [ -n "$A" ]; then B=3; fi\npython x.py --tp $B', "python x.py --tp 3"),
        ('A=""\nif [[ -z "$A" ]] || [[ $C == 1 ]]; then B=2; fi\npython x.py --tp $B', "python x.py --tp 2"),
        ("A=x\nif [[ ! $A == x ]] && [ 1 = 1 ]\nthen\nB=2\nfi\npython x.py --tp 8 --b $B", "python x.py --tp 8 --b $B"),
        ("run() {\n  python y.py --a --b --c\n}\npython x.py --tp 8", "python x.py --tp 8"),
        ("for a in 1 2; do python y.py --a --b --c; done\npython x.py --tp 8", "python x.py --tp 8"),
        ('echo "don\'t --a --b"\npython x.py --tp 8', "python x.py --tp 8"),
    ],
)
def test_words_are_those_that_the_shell_would_pass(text: str, words: str) -> None:
    assert " ".join(_words(text)) == words


def test_blocks_that_cannot_be_decided_are_told_where_they_matter() -> None:
    text = 'A=(--tp 8)\nB=(--pp 2)\nif [ -n "${KEY}" ]; then\n  A+=(--bf16)\n  C=1\nfi\npython x.py ${A[@]} ${B[@]}'
    assert _words(text) == ["python", "x.py", "--tp", "8", "--pp", "2"]
    assert _notes(text) == ("A is changed in a block of run.sh (line 4) that was not read",)
    indirect = text.replace("${A[@]}", "$D").replace("python", 'D="${A[@]} --x 1"\npython')
    assert "A is changed" in _notes(indirect)[0]
    assert _notes(text.replace("${A[@]} ", "")) == ()


def test_after_an_unknown_condition_no_branch_is_sure() -> None:
    text = "if [ $X = 1 ]; then A=1; elif [ 1 = 1 ]; then A=2; else A=3; fi\npython x.py --a $A"
    assert _words(text)[-1] == "$A"
    assert _notes(text)
    sure = "if [ 1 = 1 ]; then A=1; elif [ $X = 1 ]; then A=2; else A=3; fi\npython x.py --a $A"
    assert _words(sure)[-1] == "1"
    assert not _notes(sure)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\npython x.py --tp '8\n", "run.sh, line 2: found ' left open, expected its other end"),
        ("A=(--tp 8\npython x.py", "run.sh, line 1: found ( left open"),
        ("if [ 1 = 1 ]; then\npython x.py --tp 8", "run.sh, line 1: found a block without its fi"),
        ("python x.py", "run.sh: found no argument, expected arguments such as --num-layers 32"),
        ("", "run.sh: found no argument"),
    ],
)
def test_broken_scripts_are_refused_with_their_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_command(text, where="run.sh")
    assert str(caught.value).startswith(message)


def test_variables_that_nobody_assigned_are_named() -> None:
    assert unknown_variable("a/${DIR}/b") == "DIR"
    assert unknown_variable("$2") == "2"
    assert unknown_variable("$(date)") == "$(date)"
    assert unknown_variable("8") is None


@given(st.text(alphabet="a1=+-$ \n\\\"'`(){}[]#;|&<>@:*if", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_command(text, where="x")
    except InputError:
        return
    assert any(word.startswith("--") for word in found.words)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("([0]*3+[1]*58)", [0] * 3 + [1] * 58),
        ("([1]*3+[0]*1)*2", [1, 1, 1, 0] * 2),
        ("2*(3+4)-1", 13),
        ("7 / 2", 3),
        ("-1", -1),
        ("(1, 2)", [1, 2]),
        ("1/0", None),
        ("[0]*99999999", None),
        ("9**9**9", None),
        ("f(1)", None),
        ("'a'", None),
        ("True", None),
        ("[[1]]", None),
        ("(" * 500 + "1" + ")" * 500, None),
        ("", None),
    ],
)
def test_expressions_are_whole_numbers_and_lists(text: str, value: object) -> None:
    assert evaluate_expression(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "X=aa\n" + "X=$X$X\n" * 40,
        "X=aa\n" + "X=($X $X)\n" * 40,
        "X=aa\n" + "X=($X ${X[@]})\n" * 40,
        "X=" + "a" * 10**6 + "\n" + "X+=$X\n" * 40,
        "X=" + "a" * 10**6 + "\ntorchrun train.py --a " + "$X " * 1000 + "\n",
    ],
)
def test_variables_that_double_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"run\.sh, line \d+.* characters in a line"):
        read_command(text + "torchrun train.py $X --num-layers 4\n", where="run.sh")
