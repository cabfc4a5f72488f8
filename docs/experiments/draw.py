"""Write this folder's page and drawings from the results in the package.

python docs/experiments/draw.py            draw them again
python docs/experiments/draw.py FOLDER     first keep the results that `worldsize experiment run` left in FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

from worldsize.accuracy import experiment
from worldsize.accuracy.experiment import NAMES

HERE = Path(__file__).parent
TOP = """# The experiments

Fifteen questions about training on many workers, each answered by trainings of seconds, with several seeds, on one
laptop. What was predicted, when the prediction holds, and what came of it are written down in one file each, under
[accuracy/experiments](../../src/worldsize/accuracy/experiments); what did not reproduce says so.

```
worldsize experiment list
worldsize experiment run momentum
worldsize experiment run momentum --quick
worldsize experiment figure momentum
```

`run` uses all cores, keeps every finished trial in `experiments/trials.jsonl`, goes on there when it was interrupted,
and leaves a page with all figures. `figure` draws the result that is in the package; `make experiments` makes all
results anew. This page is written by `make drawings`.
"""


def page(results: dict[str, dict[str, Any]]) -> str:
    """README.md: a table, then a section for each experiment."""
    rows = ["| experiment | did the prediction hold? |", "| --- | --- |"]
    parts = []
    for name, result in results.items():
        about = experiment.named(name)
        held = "yes" if result["holds"] else "**no**"
        rows.append(f"| [{about.title}](#{name}) | {held} |")
        facts = {"Setting": about.setting, "Prediction": about.prediction, "Holds if": about.passes}
        told = "\n".join(f"- {label}: {text}" for label, text in facts.items())
        parts.append(
            f"## {name}\n\n**{about.question}** {result['finding']}\n\n![{about.title}]({name}.svg)\n\n{told}\n"
            f"- After: {about.source}\n- {result['trials']} trials, {result['seeds']} seeds, {_machine(result)}\n"
        )
    return "\n".join([TOP, *rows, "", *parts])


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    return f"{result['workers']} of {machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}"


def main(made: Path | None) -> None:
    for name in NAMES if made else ():
        result = experiment.read_result(made / f"{name}.json", name)
        finding = experiment.named(name).judge(result["measured"])  # in the words of today
        result |= {"holds": finding.holds, "finding": finding.sentence}
        experiment.published(name).write_text(json.dumps(result, indent=1) + "\n")
    results = {name: experiment.read_result(experiment.published(name), name) for name in NAMES}
    for name, result in results.items():
        experiment.write_figure(name, result, HERE / f"{name}.svg")
    (HERE / "README.md").write_text(page(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
