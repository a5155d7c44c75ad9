"""The client library against a fake coordinator: what it sends, returns, raises and survives."""

import inspect
import pydoc
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import pytest
from pydantic import ValidationError

import planaria
from planaria import Client, load_job_file
from planaria._calls import Calls
from planaria.aio import AsyncClient
from planaria.local import state as local_state
from planaria.local.state import LocalCluster
from planaria.models import Job
from unit.sdk.fake_api import Answer, FakeApi, problem, stream
from unit.sdk.samples import INFO, PLAN, RECOVERY, event, job, log_line, node, step_metrics

OK = Answer(body=job())


def test_a_job_is_sent_whole_and_comes_back_typed(coordinator: FakeApi, job_file: Path) -> None:
    coordinator.answer("POST /jobs", Answer(status=201, body=job(state="PENDING", loss=None)))
    spec = load_job_file(job_file)
    with Client() as client:
        submitted = client.submit(spec, request_id="once")
    [request] = coordinator.requests
    assert request.headers["authorization"] == "Bearer the-token"
    assert request.body == {
        "spec": spec.to_document(),
        "request_id": "once",
        "dry_run": False,
        "resume_job_id": "",
    }
    assert (submitted.id, submitted.state, submitted.loss) == ("job-1", "PENDING", None)


def test_every_change_can_be_repeated_safely(coordinator: FakeApi) -> None:
    coordinator.answer("POST /jobs/job-1:pause", OK)
    with Client() as client:
        client.pause_job("job-1")
        client.pause_job("job-1")
    first, second = (request.body["request_id"] for request in coordinator.requests)
    assert len(first) >= 16
    assert first != second


CALLS: list[tuple[str, Any, Callable[[Client], object]]] = [
    ("GET /info", INFO, lambda c: c.info().version),
    ("GET /jobs", {"jobs": [job()]}, lambda c: c.list_jobs()[0].id),
    ("GET /jobs/job-1", job(), lambda c: c.get_job("job-1").tokens_per_second),
    ("POST /jobs/job-1:cancel", job(), lambda c: c.cancel_job("job-1").state),
    ("POST /jobs/job-1:resume", job(), lambda c: c.resume_job("job-1").state),
    (
        "GET /jobs/job-1/plan",
        {"plan": PLAN, "generation": 2, "reason": "fast"},
        lambda c: c.job_plan("job-1").plan,
    ),
    (
        "GET /jobs/job-1/metrics",
        {"metrics": [step_metrics(0)]},
        lambda c: c.job_metrics("job-1")[0].loss,
    ),
    (
        "GET /jobs/job-1/recoveries",
        {"recoveries": [RECOVERY]},
        lambda c: c.job_recoveries("job-1")[0].phases[0].name,
    ),
    (
        "GET /jobs/job-1/logs",
        {"lines": [log_line(1, "hello")]},
        lambda c: c.job_logs("job-1")[0].text,
    ),
    (
        "GET /jobs/job-1/events",
        {"events": [event(1)]},
        lambda c: next(c.events(job_id="job-1")).message,
    ),
    ("GET /events", {"events": [event(1)]}, lambda c: next(c.events()).sequence),
    ("GET /nodes", {"nodes": [node("node-1")]}, lambda c: c.list_nodes()[0].engines[0].pid),
    ("GET /nodes/node-1", node("node-1"), lambda c: c.get_node("node-1").agent_pid),
    ("POST /nodes/node-1:drain", node("node-1"), lambda c: c.drain_node("node-1").id),
    ("POST /nodes/node-1:evict", node("node-1"), lambda c: c.evict_node("node-1").id),
    ("POST /nodes/node-1:cordon", node("node-1"), lambda c: c.cordon_node("node-1").id),
    ("POST /nodes/node-1:uncordon", node("node-1"), lambda c: c.uncordon_node("node-1").id),
]


@pytest.mark.parametrize(("route", "body", "call"), CALLS, ids=[route for route, *_ in CALLS])
def test_every_call_has_its_route_and_type(
    coordinator: FakeApi, route: str, body: Any, call: Callable[[Client], object]
) -> None:
    coordinator.answer(route, Answer(body=body))
    with Client() as client:
        assert call(client)


def test_a_node_can_be_removed(coordinator: FakeApi) -> None:
    coordinator.answer("DELETE /nodes/node-1", Answer(status=204))
    with Client() as client:
        client.remove_node("node-1")
    assert coordinator.requests[0].method == "DELETE"


def test_ids_cannot_reach_other_routes(coordinator: FakeApi) -> None:
    with Client() as client, pytest.raises(planaria.NotFoundError):
        client.get_job("../nodes")
    assert coordinator.requests[0].path == "/api/v1/jobs/..%2Fnodes"


def test_lists_are_read_to_their_end(coordinator: FakeApi) -> None:
    coordinator.answer(
        "GET /jobs",
        Answer(body={"jobs": [job(id="a"), job(id="b")], "next_page_token": "more"}),
        Answer(body={"jobs": [job(id="c")], "next_page_token": ""}),
    )
    with Client() as client:
        assert [one.id for one in client.list_jobs()] == ["a", "b", "c"]
    assert "page_token=more" in coordinator.requests[1].path


FAMILIES = [
    (401, "UNAUTHENTICATED", planaria.AccessError),
    (403, "ORIGIN_NOT_ALLOWED", planaria.AccessError),
    (404, "JOB_NOT_FOUND", planaria.NotFoundError),
    (409, "WRONG_STATE", planaria.ConflictError),
    (422, "NOT_ENOUGH_MICROBATCHES", planaria.InvalidArgumentError),
    (500, "INTERNAL", planaria.InternalError),
    (503, "UNAVAILABLE", planaria.UnavailableError),
]


@pytest.mark.parametrize(("status", "reason", "family"), FAMILIES)
def test_a_problem_becomes_its_family_with_reason_and_metadata(
    coordinator: FakeApi, status: int, reason: str, family: type[planaria.PlanariaError]
) -> None:
    answer = problem(status, reason, "a sentence", metadata={"job_id": "job-1"})
    coordinator.answer("GET /jobs/job-1", answer)
    with Client() as client, pytest.raises(family, match="a sentence") as caught:
        client.get_job("job-1")
    assert (caught.value.reason, caught.value.metadata) == (reason, {"job_id": "job-1"})


def test_a_job_that_the_coordinator_refuses_names_its_fields(
    coordinator: FakeApi, job_file: Path
) -> None:
    message = "training.steps: must be at least 1, not 0"
    errors = [{"field": "training.steps", "message": message}]
    coordinator.answer("POST /jobs", problem(422, "INVALID_JOB", "bad job", errors=errors))
    with Client() as client, pytest.raises(planaria.InvalidJobError) as caught:
        client.submit(load_job_file(job_file))
    assert str(caught.value) == message


def test_a_server_that_is_no_coordinator_is_recognised() -> None:
    page = httpx.MockTransport(lambda _request: httpx.Response(200, text="<html>Hello</html>"))
    with (
        Client("http://somewhere.test", transport=page) as client,
        pytest.raises(planaria.InternalError, match=r"somewhere\.test\S+ is not a Planaria coord"),
    ):
        client.list_jobs()


@pytest.mark.parametrize("body", [{"jobs": [{"id": 3}]}, {"items": []}, []])
def test_answers_of_another_version_are_one_clear_error(coordinator: FakeApi, body: Any) -> None:
    coordinator.answer("GET /jobs", Answer(body=body))
    with Client() as client, pytest.raises(planaria.ConflictError, match="is not understood"):
        client.list_jobs()


def test_unknown_fields_of_a_newer_coordinator_are_ignored(coordinator: FakeApi) -> None:
    coordinator.answer("GET /jobs/job-1", Answer(body=job(flux_capacitance=1.21)))
    with Client() as client:
        assert client.get_job("job-1").id == "job-1"


def test_an_unreachable_coordinator_is_reported_with_a_cure() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(planaria.UnavailableError) as caught:
        client.list_jobs()
    assert str(caught.value) == (
        "no coordinator answers at http://127.0.0.1:1: "
        "start one with `planaria up` or set --address/PLANARIA_ADDRESS"
    )


def test_a_silent_coordinator_is_given_up() -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    with (
        Client("http://c.test", transport=httpx.MockTransport(silent)) as client,
        pytest.raises(planaria.UnavailableError, match="did not answer in time"),
    ):
        client.list_jobs()


@pytest.mark.parametrize("address", ["localhost:8080", "ftp://host", "http://", "nonsense"])
def test_an_address_that_is_no_url_is_refused(address: str) -> None:
    with pytest.raises(planaria.InvalidArgumentError, match="must be a URL such as http://127"):
        Client(address)


def test_a_cluster_on_this_machine_is_found_by_itself(
    coordinator: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PLANARIA_ADDRESS")
    monkeypatch.delenv("PLANARIA_TOKEN")
    token_file = tmp_path / "token"
    token_file.write_text("local-token\n")
    cluster = LocalCluster(
        http_url=coordinator.url,
        grpc_address="127.0.0.1:1",
        data_dir=str(tmp_path),
        token_file=str(token_file),
        processes=(),
    )
    local_state.save(cluster)
    local_state.point_to(cluster)
    coordinator.answer("GET /jobs", Answer(body={"jobs": []}))
    with Client() as client:
        client.list_jobs()
    assert coordinator.requests[0].headers["authorization"] == "Bearer local-token"
    local_state.forget(cluster)
    with Client() as client:
        assert client.address == "http://127.0.0.1:8080"


def test_a_job_that_is_no_job_spec_is_refused_with_what_makes_one() -> None:
    with (
        Client("http://c.test") as client,
        pytest.raises(
            TypeError, match=r"must be a planaria.JobSpec and not a dict: JobSpec\.model"
        ),
    ):
        client.submit({"name": "tiny"})  # type: ignore[arg-type]


def test_a_coordinator_that_nobody_named_is_not_said_to_want_a_token() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        return httpx.Response(
            401, json={"reason": "UNAUTHENTICATED", "detail": "a token is needed"}
        )

    with (
        Client(transport=httpx.MockTransport(refuse)) as client,
        pytest.raises(planaria.UnavailableError, match=r"no cluster of yours .* `planaria up`"),
    ):
        client.list_jobs()
    with (
        Client("http://c.test", transport=httpx.MockTransport(refuse)) as client,
        pytest.raises(planaria.AccessError, match="a token is needed"),
    ):
        client.list_jobs()


def test_the_local_token_goes_to_no_other_address(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("local-token\n")
    cluster = LocalCluster(
        http_url="http://127.0.0.1:8080",
        grpc_address="",
        data_dir=str(tmp_path),
        token_file=str(token_file),
        processes=(),
    )
    local_state.save(cluster)
    local_state.point_to(cluster)
    seen: list[httpx.Request] = []

    def record(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"jobs": []})

    with Client("http://elsewhere.test", transport=httpx.MockTransport(record)) as client:
        client.list_jobs()
    assert "authorization" not in seen[0].headers


def test_a_followed_stream_goes_on_where_it_broke(coordinator: FakeApi) -> None:
    """The coordinator may restart at any moment: no event is lost, none comes twice."""
    coordinator.answer(
        "STREAM /events",
        stream(event(1), event(2)),
        problem(503, "UNAVAILABLE", "starting"),
        stream(event(2), event(3), event(4)),
    )
    with Client() as client:
        events = client.events(follow=True)
        assert [next(events).sequence for _ in range(4)] == [1, 2, 3, 4]
    asked = [request.headers["last-event-id"] for request in coordinator.requests]
    assert asked == ["0", "2", "2"]


def test_following_begins_at_the_given_event(coordinator: FakeApi) -> None:
    coordinator.answer("STREAM /jobs/job-1/events", stream(event(8)))
    with Client() as client:
        assert next(client.events(job_id="job-1", after_sequence=7, follow=True)).sequence == 8
    assert coordinator.requests[0].headers["last-event-id"] == "7"


def test_following_ends_when_it_cannot_help(coordinator: FakeApi) -> None:
    with Client() as client, pytest.raises(planaria.NotFoundError):
        next(client.events(job_id="unknown", follow=True))
    assert len(coordinator.requests) == 1


def test_following_gives_up_after_enough_attempts() -> None:
    client = Client("http://127.0.0.1:1", reconnect_attempts=2)
    with client, pytest.raises(planaria.UnavailableError, match="no coordinator answers"):
        next(client.events(follow=True))


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED"])
def test_waiting_raises_when_the_job_does_not_succeed(coordinator: FakeApi, state: str) -> None:
    error = {"reason": "DATA_UNUSABLE", "message": "node-2: /data is missing"}
    coordinator.answer(
        "GET /jobs/job-1",
        Answer(body=job()),
        Answer(body=job(state=state, error=error if state == "FAILED" else None)),
    )
    with Client() as client, pytest.raises(planaria.JobFailedError) as caught:
        client.wait_for_job("job-1", poll_seconds=0)
    expected = ("DATA_UNUSABLE", "node-2: /data is missing")
    found = (caught.value.reason, caught.value.message)
    assert found == (expected if state == "FAILED" else ("CANCELLED", "job job-1 is CANCELLED"))


def test_waiting_returns_the_job_that_succeeded(coordinator: FakeApi) -> None:
    coordinator.answer(
        "GET /jobs/job-1", OK, Answer(body=job(state="SUCCEEDED", final_digest="ab"))
    )
    with Client() as client:
        assert client.wait_for_job("job-1", poll_seconds=0).final_digest == "ab"


async def test_the_async_client_does_the_same(coordinator: FakeApi) -> None:
    coordinator.answer("GET /jobs/job-1", OK, Answer(body=job(state="SUCCEEDED")))
    coordinator.answer("STREAM /events", stream(event(1)), stream(event(1), event(2)))
    async with AsyncClient() as client:
        assert (await client.wait_for_job("job-1", poll_seconds=0)).state == "SUCCEEDED"
        events = client.events(follow=True)
        assert [(await anext(events)).sequence for _ in range(2)] == [1, 2]
        await events.aclose()
        with pytest.raises(planaria.NotFoundError):
            await client.get_job("unknown")


def test_both_clients_have_the_same_methods() -> None:
    def methods(client: type) -> set[str]:
        return {name for name in vars(client) if not name.startswith("_")}

    assert methods(Client) == methods(AsyncClient)


def test_a_field_of_a_newer_coordinator_is_ignored_and_a_missing_one_is_an_error() -> None:
    assert Job.model_validate(job(field_to_come=1)).id == "job-1"
    incomplete = job()
    del incomplete["state"]
    with pytest.raises(ValidationError, match="state"):
        Job.model_validate(incomplete)


def test_methods_that_both_clients_share_say_what_they_return() -> None:
    """What `inspect` and `help` show is what a call returns: the job, not the request for it."""
    with Client() as client:
        methods = (client.get_job, AsyncClient().get_job, Client.get_job)
        assert [str(inspect.signature(method)) for method in methods] == [
            "(job_id: str) -> planaria.models.Job",
            "(job_id: str) -> planaria.models.Job",
            "(self, job_id: str) -> planaria.models.Job",
        ]
        assert str(inspect.signature(client.remove_node)) == "(node_id: str) -> None"
        assert get_type_hints(client.list_jobs) == {"return": tuple[Job, ...]}
    assert inspect.iscoroutinefunction(AsyncClient().get_job)
    assert inspect.iscoroutinefunction(AsyncClient.get_job)
    assert not inspect.iscoroutinefunction(Client.get_job)
    page = pydoc.plain(pydoc.render_doc(Client))
    assert "get_job(self, job_id: str) -> planaria.models.Job" in page
    assert "builtins.type" not in page


def test_a_shared_method_can_be_called_through_its_class(coordinator: FakeApi) -> None:
    coordinator.answer("GET /jobs/job-1", OK)
    with Client() as client:
        assert Client.get_job(client, "job-1").id == "job-1"
        assert client.get_job == client.get_job
    with pytest.raises(TypeError, match="job_id"):
        Client.get_job("job-1")  # type: ignore[arg-type, call-arg]
    assert Calls.get_job("job-1").path == "/jobs/job-1"


async def test_a_shared_method_is_awaited_through_its_class(coordinator: FakeApi) -> None:
    coordinator.answer("GET /jobs/job-1", OK)
    async with AsyncClient() as client:
        assert (await AsyncClient.get_job(client, "job-1")).id == "job-1"
