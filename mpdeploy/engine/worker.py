"""The process in which one model is parsed and built; ``isolated`` starts it and talks with it.

It says ``Parsed``, waits for ``Order``, tells the steps of the build, and says ``Done``; or, at any point, a fault.
"""

import signal
import sys
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from mpdeploy.engine.backends import backend_here
from mpdeploy.engine.isolated import Done, Order, Parsed
from mpdeploy.errors import InternalError, MpdeployError


def serve(connection: Connection, backend: str, model: Path) -> None:
    """Parse ``model``, and build it when the order comes; return when there is nothing more to do."""
    try:
        with backend_here(backend).parse(model) as parsed:
            connection.send(Parsed(parsed.network, parsed.warnings()))
            order: Order = connection.recv()
            parsed.build(order.options, order.target, connection.send, order.output)
            connection.send(Done(parsed.warnings()))
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
    serve(Connection(int(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
