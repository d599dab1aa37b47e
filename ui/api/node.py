"""The node itself: probes, status, alarms, listeners, configuration, and sessions of the dashboard."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response

from broker.admin.alarms import AlarmService
from broker.config.root import ReloadedConfig, SettingsInForce
from broker.core.objects import Spec
from broker.observe.metrics_history import MetricsHistory
from ui.api.context import ApiContext, ReloadConfig, ShowSettings
from ui.api.effects import DryRun
from ui.api.models.access import SignInRequest
from ui.api.models.node import AlarmList, MetricsWindow
from ui.api.objects import KindRoutes, whole_list
from ui.api.operation import Operations
from ui.api.parameters import AnyName, microseconds, named_values
from ui.api.security import (
    context_of,
    cookie_name,
    is_token,
    set_session,
    unauthorized,
)
from ui.api.status import Status

_MAX_SIGN_IN_BYTES = 4096

Drain = Annotated[bool, Query(description="Whether its connections may stay until they end.")]
probes = APIRouter(include_in_schema=False)


@probes.get("/livez")
async def livez() -> Response:
    """The event loop turns."""
    return PlainTextResponse("ok\n")


@probes.get("/readyz")
async def readyz(request: Request) -> Response:
    """The node may get traffic."""
    context = context_of(request)
    reason = context.not_ready()
    return PlainTextResponse(f"{reason or context.ready_remark()}\n", 200 if reason is None else 503)


@probes.get("/metrics")
async def metrics(request: Request) -> Response:
    """Every metric, in Prometheus' text format."""
    return PlainTextResponse(context_of(request).metrics_text(), media_type="text/plain; version=0.0.4")


def add_sign_in(router: APIRouter) -> None:
    """Add ``/session``."""
    ops = Operations(router, "System")

    @ops.post(
        "/session",
        "signIn",
        "Open a session of the dashboard with the token",
        problems=(403,),
        most_bytes=_MAX_SIGN_IN_BYTES,
    )
    def open_session(request: Request, body: SignInRequest) -> Response:
        """Sets a cookie in exchange for the token, so that the page never stores the token."""
        context = context_of(request)
        if not is_token(request, context, body.token):
            raise unauthorized("the token is wrong")
        response = Response(status_code=204)
        set_session(request, response, context.sign_in.open_session())
        return response

    @ops.delete("/session", "signOut", "Close the session of the dashboard", problems=(403,))
    def close_session(request: Request) -> Response:
        """Deletes the session. It is no error when there is none."""
        context_of(request).sign_in.close_session(request.cookies.get(cookie_name(request), ""))
        response = Response(status_code=204)
        response.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
        return response


def add_status(router: APIRouter, context: ApiContext) -> None:
    """Add ``GET /status``."""

    @Operations(router, "System").get("/status", "getStatus", "Show the state of the node", answer=Status)
    def status() -> Any:
        """Returns counters, rates, listeners, and the state of rules, streams, tables and bridges. `/metrics` has the
        same for Prometheus.
        """
        return context.status()


def add_alarms(router: APIRouter, alarms: AlarmService) -> None:
    """Add ``/alarms`` and ``/alarms/history``."""
    ops = Operations(router, "System")

    @ops.get("/alarms", "listAlarms", "List active alarms", answer=AlarmList)
    def list_alarms() -> Spec:
        """Returns the alarms that are active, newest first."""
        return whole_list(alarms.active())

    @ops.get("/alarms/history", "listPastAlarms", "List past alarms", answer=AlarmList)
    def list_past_alarms() -> Spec:
        """Returns alarms that ended, newest first, for as long as `alarms` settings keep them."""
        return whole_list(alarms.history())

    @ops.delete("/alarms/history", "forgetPastAlarms", "Delete past alarms")
    def forget() -> None:
        """Deletes the history of alarms that ended. Active alarms stay."""
        alarms.forget_history()


def add_history(router: APIRouter, history: MetricsHistory) -> None:
    """Add ``GET /metrics/history``."""

    @Operations(router, "System").get(
        "/metrics/history", "getMetricsHistory", "Show the history of metrics", answer=MetricsWindow, problems=(422,)
    )
    async def get_history(
        names: Annotated[
            list[str] | None, Query(max_length=100, description="Name of a metric; repeatable. All metrics if absent.")
        ] = None,
        labels: Annotated[
            list[str] | None, Query(max_length=10, description="`NAME=VALUE` of a label of the series; repeatable.")
        ] = None,
        from_: Annotated[
            str | None,
            Query(
                alias="from", description="Start: RFC 3339 or milliseconds since 1970. An hour before `to` if absent."
            ),
        ] = None,
        to: Annotated[
            str | None, Query(description="End: RFC 3339 or milliseconds since 1970. The present if absent.")
        ] = None,
        step: Annotated[
            int,
            Query(ge=1, le=7 * 86_400, description="Minimum number of seconds per value; `step_s` is the number used."),
        ] = 1,
    ) -> Spec:
        """Returns rates and gauges, kept for 15 minutes by second, 3 hours by 10 seconds, 24 hours by minute and
        7 days by 10 minutes. The step is the finest that reaches back to `from` and gives at most 1,500 values per
        series, 20,000 in total.
        """
        return await history.read(
            names or (),
            named_values(labels or [], "labels"),
            None if from_ is None else microseconds(from_, "from"),
            None if to is None else microseconds(to, "to"),
            step,
        )


def add_listeners(routes: KindRoutes) -> None:
    """Add the creation of listeners, whose path has the name."""
    kind = routes.kind
    service = routes.service

    @routes.ops.post(
        routes.one,
        "createListener",
        "Create a listener",
        body=kind,
        answer=kind,
        status=201,
        problems=(409,),
        may_be_dry=True,
    )
    async def create_listener(name: AnyName, body: Spec, request: Request, dry_run: DryRun = False) -> Any:
        """Adds a listener and opens it. Its name is its type and a name: `tcp:plant`."""
        spec = routes.named(body, name)
        return await routes.written(request, name, spec, partial(service.create, spec), is_dry=dry_run, status=201)


def add_settings(router: APIRouter, settings: ShowSettings) -> None:
    """Add ``GET /config``."""

    @Operations(router, "System").get("/config", "getConfig", "Show the settings in force", answer=SettingsInForce)
    async def get_config() -> SettingsInForce:
        """Returns every setting with its value and source, and the value in the files where that differs. Secrets are
        masked.
        """
        return await settings()


def add_reload(router: APIRouter, reload: ReloadConfig) -> None:
    """Add ``POST /config:reload``."""

    @Operations(router, "System").post(
        "/config:reload", "reloadConfig", "Reload the configuration", answer=ReloadedConfig, problems=(422,)
    )
    async def reload_config(drain: Drain = False) -> ReloadedConfig:
        """Reads the configuration files again and applies what changed. Nothing changes when any of it is wrong."""
        return await reload(drain=drain)
