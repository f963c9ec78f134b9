"""Stands in for a command that is forked elsewhere (`tests/forks.py`): gives it what was given here, hands on signals, and ends as it does.
Where this process is killed, the command is, too.

Nothing but what starts at once is imported here.
"""

import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: connection.sendall(bytes([number])))
told = json.dumps([sys.argv[2], sys.argv[3:], dict(os.environ), os.getcwd()])
socket.send_fds(connection, [told.encode() + b"\n"], [0, 1, 2])
for descriptor in (0, 1, 2):
    os.close(descriptor)
code = int(connection.recv(16) or -signal.SIGKILL)
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
