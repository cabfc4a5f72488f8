"""The command line: arguments, printing, exit codes. A room is opened only when a command needs it."""

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from worldsize import __version__
from worldsize.errors import Misuse, WorldsizeError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 it ran and failed, 2 misuse, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    trace = "--trace" in words[: words.index("--")] if "--" in words else "--trace" in words
    try:
        arguments = build_parser(words).parse_args(words)
        _refuse_empty(arguments)
        with _signals_interrupt():
            code = arguments.handler(arguments)
        sys.stdout.flush()
        return code
    except WorldsizeError as error:
        if trace:
            raise
        return _say(" ".join(str(error).split()), error.exit_code)
    except Ended as ended:
        return _say(f"ended by {ended.name}; all workers have been ended", 128 + ended.number)
    except KeyboardInterrupt:
        return _say("interrupted; all workers have been ended", INTERRUPTED)
    except OSError as error:
        if trace:
            raise
        where = f"{error.filename}: " if error.filename else ""
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # what could not be written is not tried again at exit
        return _say(f"{where}{error.strerror or error}", 1)


def _say(text: str, code: int) -> int:
    print(f"worldsize: {text}", file=sys.stderr)
    return code


def _refuse_empty(arguments: argparse.Namespace) -> None:
    """An empty path is a shell variable that was not set, as a rule, and not a wish for the default."""
    for name, value in vars(arguments).items():
        if value == "":
            raise Misuse(f"--{name.replace('_', '-')} is empty; name something, or leave it out")


class Ended(KeyboardInterrupt):
    """Somebody else asks this process to end: a batch system, or a terminal that is closed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.name = number, signal.Signals(number).name


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end things in good order, as Ctrl-C does; what ignored one goes on ignoring it."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Ended(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL)
        before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Parser(argparse.ArgumentParser):
    """argparse with one line for a misuse."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**(named | {"allow_abbrev": False}))

    def error(self, message: str) -> NoReturn:
        raise Misuse(f"{message}; see `{self.prog} --help`")


def build_parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """All verbs and their flags; given the words of a command line, the flags of the verb in it alone."""
    parser = _Parser(prog="worldsize", description="Change the world size. Keep the model.")
    parser.add_argument("--version", action="version", version=f"worldsize {__version__}")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (text, add_flags, handler) in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        verb.add_argument("--trace", action="store_true", help="on an error, show the stack")
        verb.set_defaults(handler=handler)
        if words is None or name in words:
            add_flags(verb)
    return parser


# ---- train ----------------------------------------------------------------------------------------------------------


def _train(verb: argparse.ArgumentParser) -> None:
    from dataclasses import fields

    from worldsize.train.settings import MAY_CHANGE, Run

    kinds: dict[Any, str] = {int: "N", float: "X"}
    experiment = verb.add_argument_group("the experiment", "what decides the weights")
    machine = verb.add_argument_group("the machine", "what may change from one sitting to the next")
    for each in fields(Run):
        details = dict(each.metadata)
        text = details.pop("help")
        if each.default is not None and details.get("action") is None:
            text += f" (default {each.default})"
        if not {"choices", "action", "metavar"} & details.keys():
            details["metavar"] = kinds.get(details.get("type"), "NAME")
        # SUPPRESS: only what was given is there, so that a resumed run knows what was asked to change.
        group = machine if each.name in MAY_CHANGE else experiment
        flag = f"--{each.name.replace('_', '-')}"
        group.add_argument(flag, dest=each.name, default=argparse.SUPPRESS, help=text, **details)
    records = verb.add_argument_group("the run", "what it leaves and prints")
    records.add_argument(
        "--out", metavar="DIR", help="folder for records and checkpoints (default: a new one in ./runs)"
    )
    records.add_argument("--resume", metavar="RUN", help="go on with this run's folder, at any number of workers")
    records.add_argument("--stop-after", metavar="STEP", type=int, help="end after this step, with a checkpoint")
    records.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else, on stdout")
    records.add_argument("--list", action="store_true", help="show all models and data sets")


def _run_train(arguments: argparse.Namespace) -> int:
    import json
    import shlex
    from dataclasses import fields
    from pathlib import Path

    from worldsize.train.settings import Run, from_record

    if arguments.list:
        return _show_names()
    given = {each.name: getattr(arguments, each.name) for each in fields(Run) if hasattr(arguments, each.name)}
    if arguments.resume and arguments.out:
        raise Misuse(f"--resume {arguments.resume} goes on in its own folder; leave --out out")
    run = Run(**given) if not arguments.resume else None

    from rich.console import Console

    from worldsize.run import training
    from worldsize.train.records import Records

    if run is None:
        folder = Path(arguments.resume)
        run = from_record(Records(folder).read()["settings"], given, folder)
    else:
        folder = Path(arguments.out) if arguments.out else training.new_folder(run)
    console = Console(stderr=arguments.json, quiet=arguments.json and not sys.stderr.isatty(), highlight=False)
    result = training.start_training(
        run,
        out=folder,
        resume=bool(arguments.resume),
        stop_after=arguments.stop_after,
        command=shlex.join(["worldsize", *sys.argv[1:]]),
        console=console,
    )
    if result is None:  # one of several workers that somebody else has started: the first one speaks for all
        return 0
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        training.show_result(console, result)
    return 0


def _show_names() -> int:
    from worldsize.train import data, models

    for title, names in (("models", models.NAMES), ("data sets", data.NAMES)):
        print(title)
        for name, text in names.items():
            print(f"  {name}\n      {text}")
    return 0


# ---- the other verbs ------------------------------------------------------------------------------------------------


def _demo(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--workers", type=int, metavar="N", help="how many workers to compare with one (default: all cores)"
    )
    verb.add_argument(
        "--out", metavar="FILE", default="report.html", help="where to leave the page (default report.html)"
    )
    verb.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else, on stdout")


def _run_demo(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from worldsize.demo import run_demo

    return run_demo(arguments.workers, Path(arguments.out), as_json=arguments.json)


def _script(verb: argparse.ArgumentParser) -> None:
    verb.usage = "worldsize run [-n N] [--log-dir DIR] [--quiet] [--json] [--trace] [-m] SCRIPT [ARGUMENTS ...]"
    verb.add_argument("-n", "--workers", type=int, metavar="N", help="how many workers (default: one per GPU or core)")
    verb.add_argument(
        "--log-dir", metavar="DIR", help="where each worker's output is kept (default: a temporary folder)"
    )
    verb.add_argument("--quiet", action="store_true", help="leave the workers' output in their logs")
    verb.add_argument("--json", action="store_true", help="print how it ended as JSON, and nothing else, on stdout")
    verb.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as with python -m")
    verb.add_argument("script", metavar="SCRIPT", help="a Python script, as you would start it with python")
    verb.add_argument("arguments", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="what the script is given")


def _run_script(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from worldsize.run.machine import places_for_workers
    from worldsize.run.script import run_script

    return run_script(
        arguments.script,
        arguments.arguments,
        workers=places_for_workers() if arguments.workers is None else arguments.workers,
        module=arguments.module,
        log_dir=Path(arguments.log_dir) if arguments.log_dir else None,
        quiet=arguments.quiet,
        as_json=arguments.json,
    )


def _report(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", metavar="RUN", help="a folder that `worldsize train` wrote")
    verb.add_argument("--out", metavar="FILE", help="where to write the page (default: report.html in that folder)")


def _run_report(arguments: argparse.Namespace) -> int:
    from pathlib import Path

    from worldsize.report.run import write_run_page

    print(write_run_page(Path(arguments.run), Path(arguments.out) if arguments.out else None))
    return 0


def _compare(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("reference", metavar="A", help="a folder that holds a run's folder for each seed")
    verb.add_argument("others", metavar="B", nargs="+", help="more such folders, each compared with A")
    verb.add_argument(
        "--margin",
        type=float,
        required=True,
        metavar="X",
        help="the difference you would not mind (0.005: half a point)",
    )
    verb.add_argument("--measure", choices=["accuracy", "loss"], default="accuracy", help="of what (default accuracy)")
    verb.add_argument("--level", type=float, default=0.05, metavar="X", help="how often to err at most (default 0.05)")
    verb.add_argument("--target", type=float, metavar="X", help="compare steps and seconds to this accuracy as well")
    verb.add_argument("--json", action="store_true", help="print the findings as JSON, and nothing else, on stdout")


def _run_compare(arguments: argparse.Namespace) -> int:
    import json
    from pathlib import Path

    from rich.console import Console

    from worldsize.accuracy import compare

    question = compare.Question(
        margin=arguments.margin, measure=arguments.measure, level=arguments.level, target=arguments.target
    )
    reference, *others = (compare.read_set(Path(name)) for name in (arguments.reference, *arguments.others))
    verdicts = compare.compare(reference, others, question)
    if arguments.json:
        print(json.dumps([compare.as_json(verdict) for verdict in verdicts], indent=1))
    else:
        compare.show(Console(highlight=False), [reference, *others], verdicts, question)
    return 0 if all(verdict.answer == "equivalent" for verdict in verdicts) else 1


def _experiment(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("action", metavar="list|run|figure", choices=["list", "run", "figure"], help="what to do")
    verb.add_argument("names", metavar="NAME", nargs="*", help="which experiments; all: every one")
    verb.add_argument("--quick", action="store_true", help="run a small part, to see that it runs; judges nothing")
    verb.add_argument("--seeds", type=int, metavar="N", help="run each setting with seeds 0 to N - 1")
    verb.add_argument("--workers", type=int, metavar="N", help="trials at a time (default: one per core)")
    verb.add_argument(
        "--out",
        metavar="PATH",
        help="run: folder for results, pages and finished trials (default experiments); "
        "figure: the file to draw, .html or .svg (default NAME.html)",
    )
    verb.add_argument("--result", metavar="FILE", help="figure: draw this result, not the one in the package")
    verb.add_argument("--json", action="store_true", help="print the findings as JSON, and nothing else, on stdout")


def _run_experiment(arguments: argparse.Namespace) -> int:
    from worldsize.accuracy import verbs

    return verbs.ACTIONS[arguments.action](arguments)


def _landscape(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("run", metavar="RUN", help="a folder that `worldsize train` wrote")
    verb.add_argument("other", metavar="OTHER", nargs="?", help="another such run: look at the way between both")
    verb.add_argument("--dims", type=int, choices=[1, 2], default=2, help="a line, or a plane (default 2)")
    verb.add_argument("--points", type=int, metavar="N", help="places along each direction (default 51, on a plane 21)")
    verb.add_argument(
        "--span",
        type=float,
        metavar="X",
        help="how far to go: 1 moves each filter by its own length (default 1); with OTHER, how far beyond both, "
        "1 being the way between them (default 0.25)",
    )
    verb.add_argument("--examples", type=int, metavar="N", help="measure on the first N examples (default 1000)")
    verb.add_argument("--on", choices=["train", "test"], default="train", help="examples of which set (default train)")
    verb.add_argument(
        "--reestimate", action="store_true", help="measure the statistics of batch norm anew at every place"
    )
    verb.add_argument(
        "--curvature", action="store_true", help="also the largest Hessian eigenvalue, the trace, and the sharpness"
    )
    verb.add_argument("--seed", type=int, default=0, metavar="N", help="of the random directions (default 0)")
    verb.add_argument("--workers", type=int, metavar="N", help="processes; changes no bit (default: all there are)")
    verb.add_argument("--out", metavar="FILE", help="where to write the page (default: landscape.html in RUN)")
    verb.add_argument("--json", action="store_true", help="print the numbers as JSON, and nothing else, on stdout")


def _run_landscape(arguments: argparse.Namespace) -> int:
    import json
    import shlex
    from dataclasses import fields
    from pathlib import Path

    from rich.console import Console

    from worldsize.accuracy import landscape

    console = Console(stderr=arguments.json, quiet=arguments.json and not sys.stderr.isatty(), highlight=False)
    view = landscape.View(**{each.name: getattr(arguments, each.name) for each in fields(landscape.View)})
    record = landscape.start_landscape(
        view,
        workers=arguments.workers,
        out=Path(arguments.out) if arguments.out else None,
        command=shlex.join(["worldsize", *sys.argv[1:]]),
        console=console,
    )
    if arguments.json:
        print(json.dumps(landscape.as_json(record), indent=1))
    else:
        landscape.show(console, record)
    return 0


def _doctor(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="print the findings as JSON")


def _run_doctor(arguments: argparse.Namespace) -> int:
    from worldsize.run.doctor import examine, show

    return show(examine(), as_json=arguments.json)


VERBS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]] = {
    "demo": ("train on one worker, then on all cores; the weights are the same", _demo, _run_demo),
    "train": ("train a reference model on a named data set", _train, _run_train),
    "run": ("start any script on several workers of this machine", _script, _run_script),
    "report": ("the page of a run", _report, _run_report),
    "compare": ("are two sets of runs equally accurate, within a margin", _compare, _run_compare),
    "experiment": ("list, run and draw the experiments of the course", _experiment, _run_experiment),
    "landscape": ("the loss around a trained model, or between two", _landscape, _run_landscape),
    "doctor": ("is this machine ready: fact, verdict, fix", _doctor, _run_doctor),
}

if __name__ == "__main__":
    sys.exit(main())
