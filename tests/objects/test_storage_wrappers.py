"""Wrappers for retries, meters and faults around a store. The test controls the store."""

import asyncio
from pathlib import Path

import pytest
from storage_fakes import Scripted, collect, machine

from moldau.metrics import Meters
from moldau.objects import (
    S3_LATENCY,
    FaultyStorage,
    HealthState,
    Latency,
    MemoryStorage,
    MeteredStorage,
    ObjectNotFoundError,
    RetryBudget,
    RetryingStorage,
    RetryPolicy,
    StorageError,
    StorageHealth,
    StorageHealthReport,
    StorageSettings,
    StorageTimeoutError,
    StorageWeather,
    ThrottledError,
    open_storage,
    open_with_latency,
)
from moldau.objects.health import HealthState as States
from moldau.runtime import SeededEntropy, SystemClock
from moldau.simulation.world.world import World

QUICK = RetryPolicy(first_backoff_ms=0.1, max_backoff_ms=1, attempt_timeout_ms=1_000, deadline_ms=60_000)


def _memory() -> MemoryStorage:
    return MemoryStorage(SystemClock())


def _retrying(storage: Scripted, **settings: object) -> RetryingStorage:
    return RetryingStorage(storage, SeededEntropy(1), policy=QUICK, **settings)  # type: ignore[arg-type]


def test_transient_errors_and_time_outs_are_tried_again() -> None:
    scripted = Scripted(_memory(), ThrottledError("slow down"), StorageError("500"), 5.0, None)
    reports: list[States] = []
    storage = _retrying(scripted, health=StorageHealth(on_change=lambda report: reports.append(report.state)))
    with World(1) as world:
        world.run(storage.upload("a", b"1", 1))
    assert scripted.calls == ["upload"] * 4
    assert reports == [HealthState.STRUGGLING, HealthState.WORKING]


@pytest.mark.parametrize("error", [StorageError("denied", transient=False), ObjectNotFoundError("a")])
def test_permanent_errors_are_not_tried_again(error: StorageError) -> None:
    scripted = Scripted(_memory(), error)
    with pytest.raises(type(error)):
        asyncio.run(_retrying(scripted).fetch("a", 0, 1))
    assert scripted.calls == ["fetch"]


def test_the_deadline_ends_all_attempts() -> None:
    async def main() -> None:
        scripted = Scripted(_memory(), *[9.0] * 100)
        policy = RetryPolicy(first_backoff_ms=1, max_backoff_ms=1, attempt_timeout_ms=10, deadline_ms=50)
        storage = RetryingStorage(scripted, SeededEntropy(1), policy=policy)
        begin = asyncio.get_running_loop().time()
        with pytest.raises(StorageTimeoutError):
            await storage.upload("a", b"1", 1)
        assert asyncio.get_running_loop().time() - begin == pytest.approx(0.05, abs=0.001)
        assert 5 <= len(scripted.calls) <= 6

    with World(1) as world:
        world.run(main())


def test_an_empty_budget_ends_retries_until_successes_earn_some() -> None:
    async def main() -> None:
        scripted = Scripted(_memory(), *[StorageError("500")] * 5)
        storage = _retrying(scripted, budget=RetryBudget(capacity=2, earned_by_success=0.5))
        with pytest.raises(StorageError):
            await storage.upload("a", b"1", 1)
        assert len(scripted.calls) == 3
        with pytest.raises(StorageError):
            await storage.upload("a", b"1", 1)
        # The budget has no token, so the fourth call is the only attempt of this upload.
        assert len(scripted.calls) == 4
        with pytest.raises(StorageError):
            await storage.upload("a", b"1", 1)
        await storage.upload("a", b"1", 1)
        await storage.upload("a", b"1", 1)
        assert storage.budget.tokens == 1

    asyncio.run(main())


def test_a_failed_listing_continues_after_the_last_listed_key() -> None:
    async def main() -> None:
        memory = _memory()
        for number in range(6):
            await memory.upload(f"a/{number}", b"", 0)
        scripted = Scripted(memory, None, None, StorageError("500"), None, StorageError("500"))
        found = await collect(_retrying(scripted), "a/")
        assert [info.key for info in found] == [f"a/{number}" for number in range(6)]

    asyncio.run(main())


def test_health_is_down_when_errors_last_and_one_success_ends_it() -> None:
    reports: list[StorageHealthReport] = []
    health = StorageHealth(down_after_ms=100, on_change=reports.append)
    health.failed("first", 1_000)
    health.failed("second", 1_099)
    health.failed("third", 1_100)
    health.failed("fourth", 1_200)
    assert health.report == StorageHealthReport(HealthState.DOWN, "fourth")
    health.succeeded()
    health.succeeded()
    health.failed("again", 2_000)
    assert [report.state.value for report in reports] == ["struggling", "down", "working", "struggling"]


def test_backoff_is_fully_jittered_and_bounded() -> None:
    policy = RetryPolicy(first_backoff_ms=10, max_backoff_ms=100)
    entropy = SeededEntropy(3)
    for retry, ceiling in ((0, 10), (1, 20), (3, 80), (4, 100), (1_000, 100)):
        drawn = [policy.backoff_ms(retry, entropy) for _ in range(200)]
        assert min(drawn) < ceiling / 4
        assert ceiling * 3 / 4 < max(drawn) <= ceiling


def test_every_attempt_is_counted_by_operation() -> None:
    async def main() -> None:
        meters = Meters()
        scripted = Scripted(_memory(), None, None, ObjectNotFoundError("b"), ThrottledError("slow"))
        storage = MeteredStorage(scripted, meters)
        await storage.upload("a", b"12345", 5)
        await storage.fetch("a", 1, 3)
        with pytest.raises(ObjectNotFoundError):
            await storage.fetch("b", 0, 1)
        with pytest.raises(ThrottledError):
            await storage.upload("a", b"12345", 5)
        await storage.delete([f"k{number}" for number in range(2_500)])
        assert await collect(storage, "") != []
        scope = meters.scoped("moldau.objects", "ObjectStorage")
        assert scope.value("RequestsPerSec", operation="upload") == 2
        assert scope.value("BytesPerSec", operation="upload") == 5
        assert scope.value("BytesPerSec", operation="fetch") == 3
        assert scope.value("RequestsPerSec", operation="delete") == 3
        assert scope.value("ErrorsPerSec", operation="fetch", kind="not_found") == 1
        assert scope.value("ErrorsPerSec", operation="upload", kind="throttled") == 1
        assert scope.value("RequestTimeMs", operation="upload") == 1
        assert b"moldau_objects_ObjectStorage_RequestsPerSec_total" in meters.render()

    asyncio.run(main())


def test_injected_faults_are_the_same_for_the_same_seed() -> None:
    async def history(seed: int) -> list[str]:
        weather = StorageWeather(
            throttled_chance=0.2, failed_chance=0.2, partial_read_chance=0.3, answer_lost_chance=0.3
        )
        storage = FaultyStorage(_memory(), SeededEntropy(seed), weather)
        seen: list[str] = []
        for number in range(60):
            try:
                await storage.upload(f"{number}", b"abc", 3)
                await storage.fetch(f"{number}", 0, 3)
                seen.append("ok")
            except StorageError as error:
                seen.append(str(error))
        weather.down = True
        with pytest.raises(StorageError):
            await storage.delete(["1"])
        return seen

    first = asyncio.run(history(7))
    assert first == asyncio.run(history(7))
    assert first != asyncio.run(history(8))
    assert {"ok", "503 SlowDown", "500 internal error", "no answer in time"} <= set(first)
    assert any("the connection broke" in line for line in first)


def test_a_request_whose_response_is_lost_takes_effect() -> None:
    async def main() -> None:
        memory = _memory()
        storage = FaultyStorage(memory, SeededEntropy(1), StorageWeather(answer_lost_chance=1.0))
        with pytest.raises(StorageTimeoutError):
            await storage.upload("a", b"1", 1)
        assert bytes(await memory.fetch("a", 0, 1)) == b"1"

    asyncio.run(main())


def test_the_simulated_latency_has_the_configured_percentiles() -> None:
    entropy = SeededEntropy(5)
    drawn = sorted(S3_LATENCY.draw_ms(entropy) for _ in range(4_000))
    assert 90 < drawn[2_000] < 110
    assert 240 < drawn[3_960] < 380
    assert Latency().draw_ms(entropy) == 0


# Opening ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("ftp://x/y", {}, "not one of s3://bucket/prefix"),
        ("", {}, "not one of s3://bucket/prefix"),
        ("s3://", {}, "not one of s3://bucket/prefix"),
        ("file://host/path", {}, "write file:///absolute/path"),
        ("s3://bucket", {"no.such.option": "1"}, "no_such_option"),
        ("az://container/p", {}, "Account must be specified"),
        ("s3://[/p", {}, "diskless.storage.url 's3://[/p'"),
        ("s3://127.0.0.1:9000/bucket", {}, "'127.0.0.1:9000' is no bucket"),
        *(
            ("s3://bucket", {"endpoint": endpoint}, f"endpoint {endpoint!r} is no address")
            for endpoint in ("nonsense", "127.0.0.1:9000", "http://", "http://host:99999", "http://a b")
        ),
        ("s3://bucket", {"region": "eu west"}, "region 'eu west' is not the name of a region"),
        ("gs://bucket", {"proxy.url": "here"}, "proxy_url 'here' is no address"),
    ],
)
def test_a_bad_url_or_option_is_one_clear_line(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(StorageError) as caught:
        open_storage(StorageSettings(url, options=options), machine(), Meters())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/prefix", {"region": "eu-central-1", "unsigned.payload": "true"}),
        ("gs://bucket/prefix", {"skip.signature": "true"}),
        ("az://container/prefix", {"account.name": "a", "account.key": "a2V5", "timeout": "20s"}),
        ("memory://", {}),
    ],
)
def test_every_kind_of_store_is_opened_by_its_url(url: str, options: dict[str, str]) -> None:
    open_storage(StorageSettings(url, options=options), machine(), Meters())


def test_a_bad_class_name_is_one_clear_line() -> None:
    for name in (
        "nodots",
        "no.such.module.Class",
        "moldau.objects.Nothing",
        "moldau.objects.factory.__doc__",
    ):
        with pytest.raises(StorageError, match=r"diskless\.storage\.class\.name"):
            open_storage(StorageSettings("memory://", name), machine(), Meters())


def test_a_plug_in_store_gets_the_url_and_the_options() -> None:
    settings = StorageSettings("any://thing", "storage_plugin.open_plugin", {"colour": "blue"})
    storage = open_storage(settings, machine(), Meters())
    asyncio.run(storage.upload("a", b"1", 1))
    with pytest.raises(StorageError, match=r"diskless\.storage\.class\.name"):
        open_storage(StorageSettings("x://y", "storage_plugin.TakesNothing"), machine(), Meters())


def _check(url: str, **options: str) -> str:
    async def main() -> None:
        settings = StorageSettings(url, options=options)
        storage = open_storage(settings, machine(), Meters())
        await storage.check()

    with pytest.raises(StorageError) as caught:
        asyncio.run(main())
    line = str(caught.value)
    assert "\n" not in line
    assert url.split("?")[0] in line
    return line


def test_a_missing_bucket_or_wrong_address_is_reported_at_the_start(s3_endpoint: str) -> None:
    keys = {"access_key_id": "k", "secret_access_key": "s"}
    assert "does not exist" in _check("s3://no-such-bucket/p", endpoint=s3_endpoint, **keys)
    assert "error sending request" in _check("s3://bucket/p", endpoint="http://127.0.0.1:1", **keys)


def test_a_folder_that_cannot_be_created_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in _check(f"file://{tmp_path}/file/objects")


def test_a_store_can_be_opened_as_slow_as_another() -> None:
    options = {"latency.put.p50.ms": "20", "latency.put.p99.ms": "40"}
    storage = open_with_latency("memory://", options, machine())
    assert isinstance(storage, FaultyStorage)
    assert storage.weather.put_latency == Latency(20.0, 40.0)
    assert storage.weather.get_latency == S3_LATENCY
    with pytest.raises(StorageError, match=r"latency\.get\.p50\.ms 'soon' is not a number"):
        open_with_latency("memory://", {"latency.get.p50.ms": "soon"}, machine())
