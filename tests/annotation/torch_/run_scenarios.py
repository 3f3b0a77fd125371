"""Run by conftest.py under the recorder: the scenarios of a file, each inside a range of its name.

python run_scenarios.py SCENARIOS.py ANSWERS.json [NAME ...]
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import traceable


def main() -> None:
    path, answers, *names = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("scenarios", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["scenarios"] = module
    spec.loader.exec_module(module)
    result: dict[str, Any] = {}
    for name in names or [one.removeprefix("scenario_") for one in vars(module) if one.startswith("scenario_")]:
        with traceable.annotate(f"scenario {name}"):
            try:
                result[name] = {"returned": getattr(module, f"scenario_{name}")()}
            except BaseException:  # noqa: BLE001 - the test that asks for it says so
                result[name] = {"raised": traceback.format_exc()}
    Path(answers).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
