"""The fields of a request in the preset `uvicorn`: its method and its route, known before the application has it.

The fields of a range are emitted when it begins, and an application finds the route later. So its routes are matched
here too, as Starlette and FastAPI match them. Loaded with the first request of a process whose requests are recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_WRAPPERS_MAX = 20
_NONE, _FULL = 0, 2  # starlette.routing.Match


def make_request_fields(cycle: Any, app: Any) -> dict[str, str]:
    """Return the fields of the request that uvicorn's `run_asgi(cycle, app)` is about to pass to the application.

    `route` is the template (`/items/{id}`), without which it has no such field; of an application that keeps no routes
    there is `path` instead, as the client sent it.
    """
    scope = cycle.scope
    fields = {"method": str(scope["method"])}
    try:
        routes = _find_routes(app)
        # Matching changes the scope.
        route = None if routes is None else _match_route(routes, dict(scope))
    except Exception:  # noqa: BLE001 - a route that can't be matched: the application matches it itself, and fails or not
        routes = route = None
    if routes is None:
        return {**fields, "path": str(scope["path"])}
    return fields if route is None else {**fields, "route": route}


def _find_routes(app: Any) -> Iterable[Any] | None:
    """Return the routes of an application, or of the one that middleware is around; None where it keeps none."""
    for _ in range(_WRAPPERS_MAX):
        routes = getattr(app, "routes", None)
        if isinstance(routes, list | tuple) and all(hasattr(route, "matches") for route in routes):
            return routes
        app = getattr(app, "app", None)
        if app is None:
            return None
    return None


def _match_route(routes: Iterable[Any], scope: Mapping[str, Any], prefix: str = "") -> str | None:
    """Return the path of the first route that takes the request, else of one that has the path with other methods."""
    partial = None
    for route in routes:
        match, child = route.matches(scope)
        if match.value == _NONE:
            continue
        endpoint = _select_route(route, scope)
        inside = _find_routes(endpoint)
        if inside:
            mounted = prefix + str(endpoint.path)
            template = _match_route(inside, {**scope, **child}, mounted) or mounted
        else:
            template = prefix + str(endpoint.path_format)
        if match.value == _FULL:
            return template
        partial = partial or template
    return partial


def _select_route(route: Any, scope: Mapping[str, Any]) -> Any:
    """Return the route that takes the request: FastAPI's included routers are one route for many."""
    for _ in range(_WRAPPERS_MAX):
        match = getattr(route, "_match", None)
        if match is None:
            break
        _, _, route, context = match(scope)
        if context is not None:
            route = getattr(context, "starlette_route", None) or context
    return route
