"""The inference server as a FastAPI application that OpenTelemetry's own package instruments.

    pip install fastapi uvicorn opentelemetry-sdk opentelemetry-instrumentation-fastapi
    python examples/otel_server.py --port 8000 --spans spans.jsonl
    curl -H 'content-type: application/json' -d '{"prompt": "The next byte"}' http://127.0.0.1:8000/predict

Record it, and each span of it is a range; a request's range has the ids of its span:

    python -m traceable run --record-spans examples/otel_server.py --port 8000

Each batch is a step, which names its requests. The spans are written to a file, a JSON object a line, as a real server
would send them to a collector. It runs until SIGTERM or Ctrl-C, and finishes what has begun.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import inference_server
import transformer
import uvicorn
from fastapi import FastAPI, Header
from opentelemetry import trace
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from pydantic import BaseModel, Field

import traceable


class Prompt(BaseModel):
    """The body of a request."""

    prompt: str = Field(min_length=1, max_length=transformer.MAX_TOKENS)


def make_app(model: Any, max_batch: int, max_wait_s: float) -> FastAPI:
    """Return the application. Its batches are computed on a thread of their own, one after the other."""

    @contextlib.asynccontextmanager
    async def run_batcher(app: FastAPI) -> AsyncIterator[None]:
        app.state.batcher = inference_server.Batcher(model, max_batch, max_wait_s)
        yield
        await asyncio.to_thread(app.state.batcher.stop)

    app = FastAPI(lifespan=run_batcher)

    @app.post("/predict")
    async def predict(body: Prompt, x_request_id: str | None = Header(None)) -> dict[str, Any]:
        with traceable.request(x_request_id) as request:
            answer: dict[str, Any] = await app.state.batcher.submit(request.id, body.prompt.encode())
        return answer

    return app


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="default: any free one; it is printed")
    parser.add_argument("--spans", type=Path, default=Path("/dev/null"), help="the file for the spans")
    parser.add_argument("--max-batch", type=int, default=8, help="prompts in a batch at most (default: 8)")
    parser.add_argument("--max-wait-ms", type=float, default=2.0, help="a prompt's wait for others (default: 2)")
    parser.add_argument("--backend", choices=("auto", "numpy", "torch"), default="auto")
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1 (default: a GPU where torch finds one)")
    arguments = parser.parse_args()
    try:
        model = transformer.load(arguments.backend, arguments.device)
        listener = socket.create_server((arguments.host, arguments.port))
    except (ImportError, OSError, ValueError) as error:
        print(f"otel_server: {error}", file=sys.stderr)
        return 1
    with arguments.spans.open("w", encoding="utf-8") as file:
        provider = TracerProvider()
        exporter = ConsoleSpanExporter(out=file, formatter=lambda span: f"{span.to_json(indent=None)}\n")
        provider.add_span_processor(BatchSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
        app = make_app(model, arguments.max_batch, arguments.max_wait_ms / 1e3)
        FastAPIInstrumentor.instrument_app(app)
        host, port = listener.getsockname()[:2]
        print(f"listening on {host}:{port} ({model.name})", flush=True)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, lambda *_: None)  # uvicorn raises it again once it has stopped
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listener])
        provider.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
