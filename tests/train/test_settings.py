"""The settings of a run: checked as a whole, kept as JSON, and of a resumed run only some may change."""

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest

from worldsize.errors import Misuse, ResumeError
from worldsize.train.settings import MAY_CHANGE, Run, from_record

FOLDER = Path("runs/first")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"replicas": -3}, "--replicas -3 cannot be; it must be a whole number of at least 1"),
        ({"save_every": 0}, "--save-every 0 cannot be; it must be a whole number of at least 1"),
        ({"lr": 0.0}, "--lr 0.0 cannot be; it must be above 0"),
        ({"lr": math.inf}, "--lr inf cannot be; it must be a finite number"),
        ({"clip_norm": math.nan}, "--clip-norm nan cannot be; it must be above 0"),
        ({"weight_decay": math.nan}, "--weight-decay nan cannot be; it must be a finite number"),
        ({"weight_decay": -0.1}, "--weight-decay -0.1 cannot be; it must be 0 or more"),
        ({"warmup": math.inf}, "--warmup inf cannot be; it must be a finite number"),
        ({"warmup": -1.0}, "--warmup -1.0 cannot be; it must be 0 or more"),
        ({"sync": "horovod"}, "--sync horovod is unknown; there are exact, ddp"),
        ({"gradient_noise": -1.0}, "--gradient-noise -1.0 cannot be; it must be 0 or more"),
        ({"ema": 1.0}, "--ema 1.0 cannot be; a decay is above 0 and below 1, such as 0.999"),
        ({"ema": math.nan}, "--ema nan cannot be; it must be a finite number"),
        ({"grow_to": 512}, "--grow-to 512 has nothing to grow under --schedule cosine; use grow"),
        (
            {"schedule": "grow", "grow_to": 100},
            "--grow-to 100 is less than the global batch of 256 that the run begins with; name a larger one",
        ),
        (
            {"schedule": "grow", "same_steps": True},
            "--same-steps keeps the number of steps, which --schedule grow is to lower; use one of them",
        ),
        ({"precision": "fp8"}, "--precision fp8 is unknown; there are fp32, bf16, fp16"),
    ],
)
def test_what_cannot_be_is_said_with_its_flag_in_one_line(given, says):
    with pytest.raises(Misuse) as raised:
        Run(**given)
    assert str(raised.value) == says


def test_the_global_batch_is_that_of_all_replicas():
    assert Run(replicas=6, batch_per_replica=5).global_batch == 30


@pytest.mark.parametrize("run", [Run(), Run(model="mlp", epochs=3, lr=0.1, drop_short=True, backend="gloo")])
def test_settings_come_back_from_a_record_as_they_were(run):
    assert from_record(json.loads(json.dumps(run.as_json())), {}, FOLDER) == run


def test_a_record_of_before_there_were_some_settings_is_resumed_without_them():
    later = {"same_steps", "grow_to", "gradient_noise", "ema"}
    kept = {name: value for name, value in Run(model="mlp").as_json().items() if name not in later}
    assert from_record(kept, {"workers": 2}, FOLDER) == Run(model="mlp", workers=2)


def test_what_changes_no_weights_may_be_given_anew():
    others = {"workers": 3, "device": "cpu", "backend": "gloo", "bucket_mb": 1.0, "limit_s": 5.0}
    others |= {"data_dir": "there", "download": True, "save_every": 7, "noise_scale": True, "evaluate_every": 2}
    assert others.keys() == set(MAY_CHANGE)
    assert from_record(Run().as_json(), others, FOLDER) == Run(**others)


def test_what_decides_the_weights_stays_and_the_flag_is_named():
    other = {"seed": 1, "drop_short": True, "model": "mlp", "lr": 0.3}
    assert from_record(Run(**other).as_json(), other, FOLDER) == Run(**other), "the same again is no change"
    for each in fields(Run):
        if each.name not in MAY_CHANGE:
            with pytest.raises(ResumeError) as raised:
                from_record(Run().as_json(), {each.name: "another"}, FOLDER)
            flag = f"--{each.name.replace('_', '-')}"
            assert str(raised.value).startswith(f"{FOLDER} was trained with {flag} {each.default}, now it is another; ")
            assert f"leave {flag} out to resume" in str(raised.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"speed": 3}, r"with settings that this worldsize does not know \(speed\); resume it with the version"),
        ({"replicas": "8"}, "has settings of another kind .*; its run.json was changed"),
    ],
)
def test_a_record_that_is_none_of_ours_is_refused_in_one_line(change, says):
    with pytest.raises(ResumeError, match=says) as raised:
        from_record(Run().as_json() | change, {}, FOLDER)
    assert "\n" not in str(raised.value)
