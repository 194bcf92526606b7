"""The texts of hostile and broken candidates, by what comes of them: what is run as one is loaded, and in each call."""

from __future__ import annotations

START = """
import atexit, ctypes, gc, locale, mmap, os, signal, sys, tempfile, threading, time, warnings
import numpy as np
from attention_conformance import Claims, Feature, Implementation, Scope, Unsupported, numpy_op

def attend(query, key, value):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value

CORE = frozenset({{Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH}})

def made(name, function, **claims):
    return Implementation(name, Claims(Scope.OP, CORE, dtypes=("float32",), **claims), numpy_op(function))

def change_folder():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)

class Silent(Exception):
    def __str__(self):
        raise SystemExit(0)
    __repr__ = __str__

class Nameless(type):
    __name__ = property(lambda self: 1 / 0)

class NamelessError(Exception, metaclass=Nameless):
    pass

class Odd:
    __str__ = __repr__ = lambda self: 1 / 0

    def __call__(self, query, key, value):
        return attend(query, key, value)

{module}

def attention(query, key, value):
    {call}
    return attend(query, key, value)

attention = locals().get("instead") or made("hostile", attention, **locals().get("claims", {{}}))
"""
DYING = {
    "exit with status 0": ("", "os._exit(0)", "ended its process with exit status 0"),
    "null pointer": ("", "ctypes.string_at(0)", "died of SIGSEGV"),
    "abort": ("", "os.abort()", "died of SIGABRT"),
    "terminate": ("", "os.kill(0, signal.SIGTERM)", "died of SIGTERM"),
    "another thread": (
        "",
        "threading.Thread(target=os._exit, args=(3,)).start(); time.sleep(9)",
        "ended its process with exit status 3",
    ),
    "another program": ("", "os.execv('/bin/true', ['true'])", "ended its process with exit status 0"),
    "closed streams": ("", "os.closerange(0, 1000)", "such as a closed stream"),
    "writing to every stream": (
        "",
        "for n in range(3, 30):\n        try: os.write(n, b'x' * 99)\n        except OSError: pass",
        "sent what is no answer",
    ),
    "division by zero in C": ("", "ctypes.CDLL(None).div(1, 0)", "died of SIGFPE"),
    "overflow of the stack in C": (
        "@ctypes.CFUNCTYPE(None)\ndef deep(): deep()",
        "sys.setrecursionlimit(10**9); deep()",
        "died of SIGSEGV",
    ),
    "a mapped file that is cut": (
        "",
        "file = tempfile.TemporaryFile(); file.truncate(99); m = mmap.mmap(file.fileno(), 99); file.truncate(0); m[0]",
        "died of SIGBUS",
    ),
    "a thread in C": (
        "",
        "threading.Thread(target=ctypes.string_at, args=(0,)).start(); time.sleep(9)",
        "died of SIGSEGV",
    ),
    "a fork that outlives it": ("", "if os.fork(): os._exit(3)\n    time.sleep(300)", "with exit status 3"),
    "its parent": ("", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(9)", "ended with its parent"),
    "its parent, by a signal that it can catch": (
        "",
        "os.kill(os.getppid(), signal.SIGTERM); time.sleep(9)",
        "sent SIGTERM to the parent of its own process, and ended with it",
    ),
    "its group of processes": ("", "os.killpg(0, signal.SIGKILL)", "died of SIGKILL"),
    "a fork that answers, too": ("", "os.fork()", "to the request with number"),
    "a timer": ("signal.setitimer(signal.ITIMER_REAL, 0.01)", "time.sleep(9)", "died of SIGALRM"),
    "what messages are made with": (
        "import json",
        "json.JSONEncoder.encode = None",
        "the candidate has changed what its process needs to answer: TypeError",
    ),
    "a file that is cut once it is returned": (
        "",
        "file = tempfile.NamedTemporaryFile(); kept = np.memmap(file.name, np.float32, 'w+', shape=query.shape);"
        " os.truncate(file.name, 0); return np.asarray(kept)",
        "died of SIGBUS",
    ),
    "one stream in the place of all": (
        "",
        "[os.dup2(2, n) for n in range(3, 40)]",
        "the candidate has changed what its process needs to answer",
    ),
    "a profile that exits": ("", "sys.setprofile(lambda *_: os._exit(7))", "ended its process with exit status 7"),
    "a hook of the interpreter that exits": (
        "class Raises:\n    def __del__(self): 1 / 0",
        "sys.unraisablehook = lambda _: os._exit(0); Raises()",
        "ended its process with exit status 0",
    ),
    "a watchdog that exits": (
        "import faulthandler",
        "faulthandler.dump_traceback_later(0.01, exit=True); time.sleep(9)",
        "ended its process with exit status 1",
    ),
    "functions of the system": ("os.getcwd = None", "", "left its process unusable: TypeError: 'NoneType' object"),
    "a fit that aborts": ("claims = {'fit': lambda case: os.abort()}", "", "died of SIGABRT"),
    "an attribute that exits": (
        "class Exits(Odd):\n    def __getattr__(self, name): os._exit(3)\ninstead = Exits()",
        "",
        "ended its process with exit status 3",
    ),
}
LATE = {
    "a loop": ("", "while True: pass"),
    "a loop that ignores signals": (
        "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT)]",
        "while True: pass",
    ),
    "a lock": ("lock = threading.Lock(); lock.acquire()", "lock.acquire()"),
    "sleep": ("", "time.sleep(1000)"),
    "polling": ("", "while True: time.sleep(0.002)"),
    "a pause in C with every signal blocked": (
        "",
        "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals)); ctypes.PyDLL(None).pause()",
    ),
    "stopped": ("", "os.kill(os.getpid(), signal.SIGSTOP)"),
    "a message without end": (
        "class Endless(Exception):\n    def __str__(self): time.sleep(1000)",
        "raise Endless",
    ),
    "a fit without end": ("claims = {'fit': lambda case: time.sleep(1000)}", ""),
}
CHANGED = "the candidate has changed builtins.i"
REFUSED = {
    "KeyboardInterrupt": ("", "raise KeyboardInterrupt", "raised KeyboardInterrupt"),
    "SystemExit": ("", "sys.exit(0)", "raised SystemExit: 0"),
    "GeneratorExit": ("", "raise GeneratorExit", "raised GeneratorExit"),
    "MemoryError": ("", "raise MemoryError('none left')", "raised MemoryError: none left"),
    "ten million characters": ("", "raise ValueError('\\x1b' * 10**7)", "raised ValueError: "),
    "recursion": ("def deep(): deep()", "deep()", "raised RecursionError"),
    "a message that exits": ("", "raise Silent", "raised Silent: no message"),
    "an exception without a name": ("", "raise NamelessError('why')", "raised NamelessError: why"),
    "all modules": ("", "sys.modules.clear()", "raised AttributeError"),
    "built-in functions": ("import builtins", "builtins.len = builtins.isinstance = None", CHANGED),
    "built-in functions, by a right answer": (
        "import builtins",
        "right = attend(query, key, value); builtins.len = builtins.isinstance = builtins.int = None; return right",
        CHANGED,
    ),
    "built-in functions that are gone": (
        "import builtins",
        "del builtins.len, builtins.int, builtins.Exception",
        "the candidate has changed builtins.Exception, builtins.int, builtins.len",
    ),
    "an async function": (
        "async def later(query, key, value): return attend(query, key, value)\ninstead = made('hostile', later)",
        "",
        "a NumPy array was expected, got coroutine",
    ),
    "functions of NumPy": ("", "np.ndarray = np.frombuffer = None", "raised TypeError: isinstance() arg 2"),
    "a trace that raises": ("def no(*_): raise RuntimeError('no')", "sys.settrace(no)", "raised RuntimeError: no"),
    "its input": ("", "input()", "raised EOFError"),
    "nothing": ("", "return None", "a NumPy array was expected, got NoneType"),
    "itself": ("own = []; own.append(own)", "return own", "a NumPy array was expected, got list"),
    "a generator": (
        "def many(query, key, value): yield attend(query, key, value)\ninstead = made('hostile', many)",
        "",
        "a NumPy array was expected, got generator",
    ),
    "what states another class": (
        "class Lies:\n    __class__ = property(lambda self: np.ndarray)\n    __getattr__ = lambda self, name: 1 / 0",
        "return Lies()",
        "returned output as Lies, not as a NumPy array",
    ),
    "objects": ("", "return np.array([object()])", "returned output in object, not in real numbers"),
    "complex numbers": ("", "return attend(query, key, value) + 0j", "not in real numbers"),
    "long numbers": ("", "return attend(query, key, value).astype(np.longdouble)", "which no message can hold"),
    "a million times the memory": ("", "return np.broadcast_to(np.float32(0), (10**7, 10**6))", "arrays of 4000"),
    "a fit that exits": ("claims = {'fit': lambda case: sys.exit(0)}", "", "raised SystemExit: 0"),
    "a fit of a billion queries": (
        "claims = {'fit': lambda case: case.sized(query_length=10**9)}",
        "",
        "fit returned a case that cannot be run: the case has an array of",
    ),
    "a fit that returns a word": ("claims = {'fit': lambda case: 'yes'}", "", "fit returned str"),
}
HARMLESS = {
    "prints much": ("", "print('x' * 3 * 10**6); print('y', file=sys.stderr)"),
    "reads its input": ("", "sys.stdin.read()"),
    "closes its output": ("sys.stdout.close(); os.close(1)", ""),
    "changes the environment": ("", "os.environ.clear()"),
    "leaves a process": ("os.system('sleep 300 &')", ""),
    "removes modules": (
        "",
        "sys.modules.pop('json', None); sys.modules.pop('attention_conformance.spec.cases', None)",
    ),
    "a folder that is gone": ("change_folder()", ""),
    "a folder that is gone in each call": ("", "change_folder()"),
    "no environment": ("os.environ.clear()", ""),
    "another locale": ("locale.setlocale(locale.LC_ALL, 'C.UTF-8')", ""),
    "ignored signals": (
        "[signal.signal(n, signal.SIG_IGN) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)]",
        "",
    ),
    "deep recursion allowed": ("sys.setrecursionlimit(10**9)", ""),
    "little recursion allowed": ("sys.setrecursionlimit(200)", ""),
    "traced": ("sys.settrace(lambda *_: None)", ""),
    "no collection of garbage": ("gc.disable(); gc.freeze()", ""),
    "warnings as errors": ("warnings.simplefilter('error')", "warnings.warn('mine')"),
    "NumPy's errors raised": ("np.seterr(all='raise')", ""),
    "no streams": ("sys.stdout = sys.stderr = sys.excepthook = None", ""),
    "a hundred million characters": ("", "for _ in range(10): print('x' * 10**7)"),
    "the suite's modules": ("", "sys.modules.update({n: None for n in sys.modules if n.startswith('attention_c')})"),
    "a thread that raises": ("", "threading.Thread(target=lambda: 1 / 0).start()"),
    "a thread that stays": ("threading.Thread(target=time.sleep, args=(300,)).start()", ""),
    "an abort at its end": ("atexit.register(os.abort)", ""),
    "a nameless object": ("instead = Odd()", ""),
    "built-in functions of its own": (
        "import builtins; builtins.print = builtins.open = None; builtins.sum = lambda *many: sorted(many[0])[0]",
        "",
    ),
    "a built-in function that calls itself equal": (
        "import builtins\nclass Sum:\n    __eq__ = lambda self, other: True\n    __call__ = lambda self, *all: all[0]",
        "builtins.sum = Sum()",
    ),
    "nowhere to import from": ("sys.path.clear(); sys.meta_path.clear()", ""),
    "a clock that stands still": ("time.monotonic = time.time = time.sleep = lambda *_: 0.0", ""),
    "a thread in C that waits": (
        "c = ctypes.CDLL(None); c.pthread_create(ctypes.byref(ctypes.c_ulong()), None, c.pause, None)",
        "",
    ),
    "JSON of its own": ("import json", "json.dumps = lambda *args, **more: 'x'"),
    "a hook of audits that raises": ("def no(*_): raise ValueError('no')", "sys.addaudithook(no)"),
    "a closed file limit": ("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))", ""),
}
ENDING = {
    "an abort": ("atexit.register(os.abort)", "died of SIGABRT"),
    "an exit status": ("atexit.register(os._exit, 3)", "ended its process with exit status 3"),
    "a destructor that exits": ("class Exits:\n    def __del__(self): os._exit(9)\nkept = Exits()", "exit status 9"),
    "an exception": ("atexit.register(lambda: 1 / 0)", ""),
    "a closed stream": ("sys.stdout.write('kept'); atexit.register(os.close, 1)", ""),
    "nothing": ("", ""),
}
