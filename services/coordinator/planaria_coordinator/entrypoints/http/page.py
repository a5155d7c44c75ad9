"""The web page: the files of web/dist, and its index for every path that is a view of the page."""

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

NO_PAGE: Final = (
    "This coordinator serves no page: build it with `make web` and start the coordinator with "
    "--web-dir web/dist (PLANARIA_COORDINATOR_WEB_DIR). REST is under /api/v1.\n"
)
_RESERVED: Final = ("api/", "healthz", "readyz", "metrics", "openapi.json")
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Page(StaticFiles):
    """Serves the built files; a path without a file is a view, so it gets the index."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if path.startswith(_RESERVED):
            raise HTTPException(404)
        try:
            response = await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404 or "." in path.rpartition("/")[2]:
                raise
            response = await super().get_response("index.html", scope)
        response.headers.update(_HEADERS)
        if isinstance(response, FileResponse) and str(response.path).endswith("index.html"):
            # Names of the other files change with their contents; the index names them.
            response.headers["Cache-Control"] = "no-cache"
        return response


def add_page(app: FastAPI, web_dir: Path | None) -> None:
    """Serve the page for every path that is nothing else, or say at `/` how to get one."""
    if web_dir is not None and (web_dir / "index.html").is_file():
        # Not a mount: it would also answer for known paths with an unknown method.
        app.router.default = Page(directory=web_dir, html=True)
    else:
        app.add_route("/", _no_page, include_in_schema=False)


async def _no_page(_request: Request) -> Response:
    return PlainTextResponse(NO_PAGE, status_code=404)
