"""The process in which one model is parsed and built; ``isolated`` starts it, in the model's folder, and talks with it.

It says ``Parsed``, waits for ``Order``, tells the steps of the build, and says ``Done``; or, at any point, a fault.
"""

import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from mpdeploy.engine.backend import Backend
from mpdeploy.engine.backends import backend_here
from mpdeploy.engine.isolated import Done, Order, Parsed
from mpdeploy.errors import InternalError, MpdeployError
from mpdeploy.processes import end_with_parent


def serve(connection: Connection, backend: Backend, model: Path) -> None:
    """Parse ``model``, and build it when the order comes; return when there is nothing more to do."""
    try:
        # A new thread has a heap of its own: what this one allocates has no part in where the builder's objects lie.
        # So the builder works there, and nothing else does.
        with ThreadPoolExecutor(1) as aside:
            context = backend.parse(model)
            parsed = aside.submit(context.__enter__).result()
            network = aside.submit(lambda: parsed.network).result()
            connection.send(Parsed(network, parsed.warnings()))
            order: Order = connection.recv()
            aside.submit(parsed.build, order.options, order.target, connection.send, order.output).result()
            connection.send(Done(parsed.warnings()))
            aside.submit(context.__exit__, None, None, None).result()
    except (EOFError, BrokenPipeError):  # nobody wants it any more
        return
    except MpdeployError as fault:
        connection.send(fault)
    except Exception as error:  # noqa: BLE001 - the other side tells it as a fault of ours
        traceback.print_exc()
        connection.send(InternalError(f"{type(error).__name__}: {error}", where=str(model)))


if __name__ == "__main__":
    # Ctrl-C reaches every process of a terminal; the one that asked for the build decides what becomes of it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(sys.argv[4]))
    serve(Connection(int(sys.argv[1])), backend_here(sys.argv[2]), Path(sys.argv[3]))
