"""Where settings of a fine-tuning stand: files, a script's text, a command line; nothing of them is run.

What transformers' Trainer, accelerate, peft, bitsandbytes and DeepSpeed are told comes from as many places as there are
of them. `FineTuning` is all of it, each in its own tool's words.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

from models_zoo.hugging_face.keys import describe
from planner.one_job.tools.base.settings import read_settings
from planner.one_job.tools.megatron.arguments import NODES, PER_NODE
from planner.one_job.tools.megatron.shell import read_command, unknown_variable
from planner.one_job.tools.megatron.shell_text import Words
from profiles.errors import InputError
from profiles.files import read_json, read_text
from profiles.numerals import read_number
from profiles.records import dataclass

Settings = Mapping[str, Any]

LORA_FILES = ("lora_config.json", "adapter_config.json")
BITS_FILE = "quantization_config.json"
TRAINER_FILES = ("training_args.json", "training_args.yaml")
ACCELERATE_FILES = ("accelerate.yaml", "accelerate_config.yaml")
TRAINERS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")
LOADERS = ("from_pretrained", "from_config")


@dataclass(kw_only=True)
class FineTuning:
    """What a fine-tuning's settings say. It fills while they are read: `trainer` is transformers' TrainingArguments
    (or trl's), `launcher` accelerate's configuration, `lora` peft's LoraConfig and `bits` transformers'
    BitsAndBytesConfig (None: there is none), `deepspeed` DeepSpeed's JSON. `model` is what the settings load, `frozen`
    how many blocks learn, counted from the last, below 0 from the first."""

    where: str
    trainer: dict[str, Any] = field(default_factory=dict)
    launcher: dict[str, Any] = field(default_factory=dict)
    lora: Settings | None = None
    bits: Settings | None = None
    deepspeed: Settings | None = None
    model: str | None = None
    loading: dict[str, Any] = field(default_factory=dict)
    learning_blocks: int | None = None
    notes: list[str] = field(default_factory=list)


def read_sources(settings: str, *, launcher: str) -> FineTuning:
    """Return what the settings say: a JSON or YAML file, a script (Python or shell), or the arguments themselves.
    `launcher`: the file is accelerate's own where that is its name. Raise InputError where there is nothing to read."""
    name = settings.strip().removeprefix("@")
    path = Path(name)
    if path.suffix in (".json", ".yaml", ".yml", ".py") or settings.strip().startswith("@") or _is_file(path):
        return _read_file(path, launcher=launcher)
    if "--" not in settings:
        expected = "a JSON or YAML file, a script (.py, .sh), or arguments such as --per_device_train_batch_size 2"
        raise InputError(where=f"--from {launcher}", found=f"{name!r}, neither a file nor arguments", expected=expected)
    tuning = FineTuning(where=launcher)
    _read_shell(settings, tuning, folder=Path())
    return tuning


def _read_file(path: Path, *, launcher: str) -> FineTuning:
    tuning = FineTuning(where=str(path))
    if path.suffix == ".py":
        _read_python(read_text(path), tuning)
    elif path.suffix in (".json", ".yaml", ".yml"):
        values = read_mapping(path)
        if launcher == "accelerate":
            tuning.launcher |= values
        else:
            tuning.trainer |= values
        _add_companions(tuning, path, launcher=launcher)
    else:
        _read_shell(read_text(path), tuning, folder=path.parent)
    return tuning


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the keys of a JSON or YAML file. Raise InputError where it has none."""
    if path.suffix != ".json":
        return dict(read_settings(path).values)
    values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(where=str(path), found=describe(values), expected="a JSON object")
    return values


def beside(tuning: FineTuning, name: str) -> Path:
    """Return the path of a file that the settings name, beside them where it is not absolute."""
    return Path(tuning.where).parent / name if Path(tuning.where).suffix else Path(name)


def _add_companions(tuning: FineTuning, path: Path, *, launcher: str) -> None:
    """Files of the usual names in the same folder: what `export --to peft` writes, and peft's own."""

    def first(names: tuple[str, ...]) -> dict[str, Any] | None:
        there = next((path.with_name(name) for name in names if _is_file(path.with_name(name))), None)
        if there is None or there == path:
            return None
        tuning.notes.append(f"read with it: {there.name} of the same folder")
        return read_mapping(there)

    if launcher == "accelerate":
        tuning.trainer |= first(TRAINER_FILES) or {}
    elif launcher == "peft":
        tuning.launcher |= first(ACCELERATE_FILES) or {}
    if launcher in ("accelerate", "peft"):
        tuning.lora, tuning.bits = first(LORA_FILES), first((BITS_FILE,))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # longer than any path, or with a null in it
        return False


# A command line


def _read_shell(text: str, tuning: FineTuning, *, folder: Path) -> None:
    """`accelerate launch --config_file X --num_processes 8 train.py --bf16 ...`, or torchrun, or the arguments."""
    command = read_command(text, where=tuning.where)
    tuning.notes += command.notes
    values = _arguments(command.words, tuning)
    config = values.pop("config_file", None)
    if config is not None:
        tuning.launcher |= read_mapping(folder / str(config))
    ranks = [values.pop(name.replace("-", "_"), None) for name in PER_NODE]
    nodes = [values.pop(name.replace("-", "_"), None) for name in NODES]
    per_node = next((value for value in ranks if isinstance(value, int)), None)
    if per_node is not None:
        tuning.launcher["num_processes"] = per_node * next((value for value in nodes if isinstance(value, int)), 1)
    for key in ("num_processes", "num_machines", "mixed_precision"):
        if key in values:
            tuning.launcher[key] = values.pop(key)
    tuning.trainer |= values


def _arguments(words: Words, tuning: FineTuning) -> dict[str, Any]:
    """Arguments by name, with underscores; one without a value is true."""
    values: dict[str, Any] = {}
    name = None
    for word in words:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            name = name.replace("-", "_")
            values[name] = _value(value) if value else True
        elif name is not None:
            held = values[name]
            more = _value(word)
            values[name] = more if held is True else [*held, more] if isinstance(held, list) else [held, more]
            if word.endswith(".py"):  # the script, behind a launcher's last flag
                values[name] = held
                name = None
    for name in [name for name, value in values.items() if isinstance(value, str) and unknown_variable(value)]:
        tuning.notes.append(f"{name} is {values.pop(name)}, which the script does not say: not read")
    return values


def _value(word: str) -> Any:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    try:
        number = read_number(word)
    except ValueError:
        return word
    return int(number) if number.is_integer() and not set(word) & set(".eE") else number


# A Python script


def _read_python(text: str, tuning: FineTuning) -> None:
    """The literal arguments of TrainingArguments, LoraConfig, BitsAndBytesConfig and from_pretrained."""
    try:
        with catch_warnings():
            simplefilter("ignore")  # of the script's own escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        found = f"no Python: {error}"[:200]
        raise InputError(where=tuning.where, found=found, expected="a script in Python 3") from None
    constants = _constants(tree)
    calls = [(node, _called(node)) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call, name in calls:
        if name in TRAINERS:
            tuning.trainer |= _keywords(call, constants, tuning)
        elif name in ("LoraConfig", "BitsAndBytesConfig"):
            setattr(tuning, "lora" if name == "LoraConfig" else "bits", _keywords(call, constants, tuning))
        elif name == "get_peft_model" and tuning.lora is None:
            tuning.lora = {}
        elif name in LOADERS and _loads_model(call):
            _read_loading(call, constants, tuning)
    if not any(name in TRAINERS for _, name in calls):
        expected = f"a call of {', '.join(TRAINERS)} with the settings"
        raise InputError(where=tuning.where, found="no such call", expected=expected)


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Names that the script gives a literal once, at its top level."""
    constants: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = _literal(node.value, constants)
            except ValueError:
                constants.pop(node.targets[0].id, None)
    return constants


def _called(call: ast.Call) -> str:
    function = call.func
    return (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )


def _loads_model(call: ast.Call) -> bool:
    """Whether it is a model that is loaded, not a tokenizer or an adapter."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
    return "Model" in name and "Peft" not in name


def _read_loading(call: ast.Call, constants: Mapping[str, Any], tuning: FineTuning) -> None:
    tuning.loading |= _keywords(call, constants, tuning)
    if call.args:
        try:
            named = _literal(call.args[0], constants)
        except ValueError:
            return
        tuning.model = named if isinstance(named, str) else None


def _keywords(call: ast.Call, constants: Mapping[str, Any], tuning: FineTuning) -> dict[str, Any]:
    """Its literal keywords; a note names those that the script computes."""
    values = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            tuning.notes.append(f"{_called(call)}(**...): what is unpacked there is not read")
            continue
        try:
            values[keyword.arg] = _literal(keyword.value, constants)
        except ValueError:
            if not isinstance(keyword.value, ast.Name | ast.Call) or keyword.arg in ("deepspeed", "fsdp"):
                tuning.notes.append(f"{keyword.arg} is computed in the script: not read")
    return values


def _literal(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """The value of a literal, a constant's name, or a torch type's. Raise ValueError for what is computed."""
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None):
            return node.value
        case ast.Name(id=name) if name in constants:
            return constants[name]
        case ast.Attribute(value=ast.Name(id="torch"), attr=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item, constants) for item in items]
        case ast.Dict(keys=names, values=items) if all(isinstance(name, ast.Constant) for name in names):
            return {
                str(_literal(name, {})): _literal(item, constants)
                for name, item in zip(names, items, strict=True)
                if name
            }
    raise ValueError("computed")
