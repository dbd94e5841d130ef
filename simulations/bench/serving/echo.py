"""A bare FastAPI application that sends back what it was sent: what the framework costs by itself.

python -m simulations.bench.serving.echo PORT
"""

from __future__ import annotations

import gc
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class Body(BaseModel):
    """The body that is sent to the routing API."""

    prompt: str


app = FastAPI()


@app.post("/echo")
async def echo(body: Body) -> Body:
    return body


@app.get("/readyz")
async def ready() -> str:
    return "ready"


def main() -> None:
    gc.collect()
    gc.freeze()  # as the service does, so that neither has an advantage
    uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
