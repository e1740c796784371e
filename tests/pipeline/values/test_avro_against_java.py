"""Decoding Avro has the same results as Avro's Java library. The results of the library are stored in the
repository, and CI computes them again.

``MOLDAU_REWRITE_GOLDEN=1`` rewrites the results. Review the diff then.
"""

import datetime
import decimal
import json
import math
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs PyArrow: pip install 'moldau[spark]'")
pytest.importorskip("fastavro", reason="needs fastavro: pip install 'moldau[spark]'")

import pyarrow as pa
from avro_cases import Case, cases, damaged_cases, random_cases

from moldau.pipeline.values.avro import AvroSchemas, avro_type, decode_avro

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE / "golden" / "avro.json"
JARS = HERE.parents[2] / ".tools" / "avro"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)


def plain(found: Any, column: pa.DataType) -> Any:
    """A column's value as the Java program writes it."""
    if found is None:
        return None
    if pa.types.is_struct(column):
        return {field.name: plain(found[field.name], field.type) for field in column}
    if pa.types.is_map(column):
        return {key: plain(one, column.item_type) for key, one in found}
    if pa.types.is_list(column):
        return [plain(one, column.value_type) for one in found]
    match found:
        case float() if not math.isfinite(found):
            return {"inf": "Infinity", "-inf": "-Infinity"}.get(str(found), "NaN")
        case bytes():
            return {"hex": found.hex()}
        case decimal.Decimal():
            return {"decimal": format(found, "f")}
        case datetime.datetime():
            return {"us": (found.replace(tzinfo=datetime.UTC) - EPOCH) // MICROSECOND}
        case datetime.date():
            return {"days": (found - EPOCH.date()).days}
        case datetime.time():
            moment = datetime.datetime.combine(EPOCH.date(), found, datetime.UTC)
            return {"us": (moment - EPOCH) // MICROSECOND}
    return found


def decode(case: Case) -> dict[str, Any]:
    schemas = AvroSchemas(case.reader, {7: case.writer}, True)
    schemas.check()
    column = avro_type(case.reader)
    framed = b"\x00\x00\x00\x00\x07" + case.encoded
    found, rejected = decode_avro(pa.array([framed, None], pa.binary()), column, schemas)
    assert found[1].as_py() is None
    if rejected:
        assert set(rejected) == {0}
        return {"error": rejected[0]}
    return {"value": plain(found[0].as_py(), column)}


def ask_java(asked: Iterable[Case]) -> list[dict[str, Any]]:
    java = shutil.which("java")
    if java is None or not JARS.is_dir():
        if os.environ.get("CI") == "true":
            pytest.fail("java or Avro's jars are missing")
        pytest.skip("java or Avro's jars are missing")
    lines = [
        json.dumps({"writer": one.writer, "reader": one.reader, "hex": one.encoded.hex()}) for one in asked
    ]
    command = [java, "-Xmx256m", "-cp", f"{JARS}/*", str(HERE / "AvroOracle.java")]
    done = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def differences(asked: list[Case], answers: list[dict[str, Any]]) -> list[str]:
    """The results that differ. For errors, only the fact that there is an error is compared."""
    found = []
    for case, answer in zip(asked, answers, strict=True):
        ours = decode(case)
        if ("error" in ours) != ("error" in answer) or ours.get("value") != answer.get("value"):
            found.append(f"{case.name}: {ours}, in Java {answer}; {case.writer} -> {case.reader}")
    return found


def test_values_are_those_of_java() -> None:
    golden = json.loads(GOLDEN.read_text())
    asked = cases()
    assert [case.name for case in asked] == list(golden)
    assert differences(asked, list(golden.values())) == []


@pytest.mark.java
def test_the_results_of_java_have_not_changed() -> None:
    asked = cases()
    answers = ask_java(asked)
    found = {case.name: answer for case, answer in zip(asked, answers, strict=True)}
    assert len(found) == len(asked)
    if os.environ.get("MOLDAU_REWRITE_GOLDEN"):
        lines = (f"{json.dumps(name)}: {json.dumps(found[name], sort_keys=True)}" for name in found)
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert found == json.loads(GOLDEN.read_text())


@pytest.mark.java
@pytest.mark.parametrize("seed", range(2))
def test_java_decodes_records_of_many_fields_to_the_same_values(seed: int) -> None:
    asked = list(random_cases(seed, 300))
    assert differences(asked, ask_java(asked)) == []


@pytest.mark.java
def test_damaged_records_are_decoded_as_by_java_or_not_at_all() -> None:
    """Rejected records are not compared, because Java accepts some of them. Examples are a boolean with the
    byte 2, and invalid UTF-8."""
    accepted = [case for case in damaged_cases(3, 2_000) if "value" in decode(case)]
    assert len(accepted) > 200
    assert differences(accepted, ask_java(accepted)) == []
