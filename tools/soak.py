#!/usr/bin/env python3
"""Keeps a server busy with many clients that mix everything, and judges what comes back.

Usage: soak.py URL [--seconds 1800] [--clients 32] [--idle 2000] [--key KEY] [--pid SERVER_PID] [--json]

First every answer is asked for alone. Then the clients ask for them again in random order, whole and streamed, in all
four APIs: chats, second turns, tool calls, schemas, grammars, reasoning, long prompts, several choices, seeds; leave
streams half-way, send bad requests, and ask two times for what nobody asked before. Meanwhile `--idle` connections that
had a stream each stay open, say a word every 50 s, and at the end all open a stream at once (start the server with
--max-queue above their number).

Exits with 1 unless every answer was the one that was given alone, every request was answered, every idle connection
was still there at the end, and the server's memory grew by less than 3 % after the warm-up (the median of the last tenth
of the time against the median around the middle). Also reports p50 and p99 of the time to the first token and of the
gap between pieces of text.
"""
import argparse
import collections
import http.client
import json
import random
import selectors
import socket
import statistics
import sys
import threading
import time
import urllib.parse

WEATHER = {"name": "get_weather", "description": "Get the current weather of a city.",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
SCHEMA = {"type": "object", "properties": {"yes": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0,
          "maximum": 99}}, "required": ["yes", "n"], "additionalProperties": False}
GRAMMAR = 'root ::= ("hope" | "door" | "sea") " is " [a-z]{3,8} "."'
QUESTIONS = ["Define hope.", "What does door mean?", "Quote Genesis 1:1.", "Define sea.", "Define justice."]
WORDS = "and the of earth water light day night heaven king son house land people word hand".split()
BAD = [({"messages": []}, "messages"), ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
       ({"temperature": 9}, "temperature"), ({"max_tokens": "many"}, "max_tokens"), ({"top_p": -1}, "top_p"),
       ({"response_format": {"type": "xml"}}, "response_format.type"), ({"grammar": "root ::= ("}, "grammar")]
MOST_GROWTH = 1.03


class API:
    """How one API takes a question and shows its answer."""

    def __init__(self, path, body, whole, piece, ended):
        self.path, self.body, self.whole, self.piece, self.ended = path, body, whole, piece, ended


def chat_body(messages, max_tokens):
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0}


def ollama_body(messages, max_tokens):
    return {"model": "default", "messages": messages, "stream": False,
            "options": {"num_predict": max_tokens, "temperature": 0}}


def responses_text(reply):
    return "".join(part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"])


CHAT = API("/v1/chat/completions", chat_body, lambda r: r["choices"][0]["message"]["content"],
           lambda e: "".join(c["delta"].get("content") or "" for c in e["choices"]), lambda e: False)
MESSAGES = API("/v1/messages", lambda m, n: dict(chat_body(m, n), model="default"),
               lambda r: "".join(b.get("text", "") for b in r["content"]),
               lambda e: e.get("delta", {}).get("text", ""), lambda e: e["type"] == "message_stop")
OLLAMA = API("/api/chat", ollama_body, lambda r: r["message"]["content"], lambda e: e["message"]["content"],
             lambda e: e["done"])
RESPONSES = API("/v1/responses", lambda m, n: {"input": m, "max_output_tokens": n, "temperature": 0}, responses_text,
                lambda e: e["delta"] if e["type"] == "response.output_text.delta" else "",
                lambda e: e["type"] in ("response.completed", "response.incomplete"))
COMPLETIONS = API("/v1/completions", None, lambda r: r["choices"][0]["text"],
                  lambda e: "".join(c["text"] for c in e["choices"]), lambda e: False)


class Probe:
    """A request whose answer never changes. Streamed ones must give the text of the whole reply."""

    def __init__(self, name, api, body, pick=None, kind="short"):
        self.name, self.api, self.body, self.kind = name, api, body, kind
        self.pick = pick or api.whole
        self.streams = pick is None
        self.expected = None


def user(text):
    return [{"role": "user", "content": text}]


def make_probes():
    probes = []
    for question in QUESTIONS:
        for api in (CHAT, MESSAGES, OLLAMA, RESPONSES):
            probes.append(Probe(f"{api.path} {question}", api, api.body(user(question), 48)))
        body = chat_body(user(question), 48)
        probes.append(Probe("schema " + question, CHAT, dict(body, response_format={
            "type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}})))
        probes.append(Probe("thinks " + question, CHAT, dict(body, reasoning_effort="high", max_tokens=80),
                            lambda r: [r["choices"][0]["message"].get(k) for k in ("reasoning_content", "content")]))
        probes.append(Probe("seed " + question, CHAT, dict(body, temperature=1, seed=7, max_tokens=16)))
        probes.append(Probe("choices " + question, CHAT, dict(body, temperature=1, seed=3, n=3, max_tokens=12),
                            lambda r: [c["message"]["content"] for c in r["choices"]]))
        for times in (20, 60, 120):
            text = "In the beginning God created the heaven and the earth. " * times + question
            probes.append(Probe(f"long {times} {question}", CHAT, chat_body(user(text), 16), kind="long"))
    probes.append(Probe("tools", CHAT, dict(chat_body(user("What is the weather in Oslo?"), 48),
                                            tools=[{"type": "function", "function": WEATHER}]),
                        lambda r: [c["function"] for c in r["choices"][0]["message"]["tool_calls"]]))
    probes.append(Probe("grammar", CHAT, dict(chat_body(user("Say it."), 24), grammar=GRAMMAR)))
    probes.append(Probe("text", COMPLETIONS, {"prompt": "In the beginning", "max_tokens": 40, "temperature": 0}))
    return probes


class Failure(Exception):
    pass


class Client:
    """One connection that is opened again when it has to be."""

    def __init__(self, args):
        self.url = urllib.parse.urlparse(args.url)
        self.headers = {"Content-Type": "application/json"}
        if args.key:
            self.headers["Authorization"] = "Bearer " + args.key
        self.connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=300)

    def close(self):
        self.connection.close()

    def send(self, path, body):
        self.connection.request("POST", path, json.dumps(body), self.headers)
        return self.connection.getresponse()

    def whole(self, path, body):
        reply = self.send(path, body)
        data = reply.read()
        if reply.status != 200:
            raise Failure(f"status {reply.status}: {data[:200]!r}")
        return json.loads(data)

    def pieces(self, api, body):
        """Texts as they come; fails when the stream does not end as it should."""
        reply = self.send(api.path, dict(body, stream=True))
        if reply.status != 200:
            raise Failure(f"status {reply.status}: {reply.read()[:200]!r}")
        ended = False
        for line in reply:
            line = line.removeprefix(b"data: ").strip()
            ended = ended or line == b"[DONE]"
            if not line.startswith(b"{"):
                continue
            event = json.loads(line)
            if event.get("error") or event.get("type") == "error":
                raise Failure(f"error event {event}")
            piece = api.piece(event)
            if piece:
                yield piece
            ended = ended or api.ended(event)
        if not ended:
            raise Failure("the stream ended early")


class Idle:
    """Connections that have had a stream and stay open; one thread watches all of them."""

    GAP = 50.0  # seconds between two words; the server closes a connection after 75 silent ones

    def __init__(self, args, probe):
        self.args, self.probe = args, probe
        self.url = urllib.parse.urlparse(args.url)
        self.selector = selectors.DefaultSelector()
        self.sockets = []
        self.missing = {}  # socket -> what its reply must contain before it is over
        self.received = {}
        self.lost = 0
        self.reasons = []
        self.words = 0
        self.stop = threading.Event()
        key = f"Authorization: Bearer {args.key}\r\n" if args.key else ""
        head = f"Host: {self.url.hostname}\r\n{key}"
        body = json.dumps(dict(probe.body, stream=True))
        self.stream = (f"POST {probe.api.path} HTTP/1.1\r\n{head}Content-Type: application/json\r\n"
                       f"Content-Length: {len(body)}\r\n\r\n{body}").encode()
        self.word = f"GET /health HTTP/1.1\r\n{head}\r\n".encode()

    def ask(self, sock, request, end):
        self.missing[sock], self.received[sock] = end, b""
        try:
            sock.sendall(request)
        except OSError as error:
            self.drop(sock, repr(error))

    def drop(self, sock, why):
        self.lost += 1
        self.reasons.append(why)
        self.selector.unregister(sock)
        self.sockets.remove(sock)
        self.missing.pop(sock, None)
        sock.close()

    def read(self, seconds):
        for key, _ in self.selector.select(seconds):
            sock = key.fileobj
            try:
                data = sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data or sock not in self.missing:  # closed, or said something unasked
                self.drop(sock, f"unasked: {data[:80]!r}")
                continue
            self.received[sock] += data
            refused = len(self.received[sock]) > 12 and not self.received[sock].startswith(b"HTTP/1.1 200")
            if refused or self.missing[sock] in self.received[sock]:
                del self.missing[sock]

    def settle(self, seconds):
        end = time.monotonic() + seconds
        while self.missing and time.monotonic() < end:
            self.read(1)
        for sock in list(self.missing):
            self.drop(sock, f"no answer: {self.received[sock][:80]!r}")

    def burst(self):
        """Every connection opens a stream at the same moment; returns how many were answered rightly."""
        for sock in list(self.sockets):
            self.ask(sock, self.stream, b"data: [DONE]\n\n\r\n0\r\n\r\n")
        self.settle(300)
        right = 0
        for sock in self.sockets:
            text = ""
            for line in self.received[sock].split(b"\n"):
                if line.startswith(b"data: {"):
                    text += self.probe.api.piece(json.loads(line[6:]))
            right += text == self.probe.expected
        return right

    def open(self):
        for _ in range(self.args.idle):
            sock = socket.create_connection((self.url.hostname, self.url.port))
            self.sockets.append(sock)
            self.selector.register(sock, selectors.EVENT_READ)
        return self.burst()

    def hold(self):
        """Until `stop`: each connection says a word when its turn comes."""
        start = time.monotonic()
        n = max(1, len(self.sockets))
        due = collections.deque((start + self.GAP / 2 * i / n, sock) for i, sock in enumerate(self.sockets))
        while not self.stop.is_set():
            while due and due[0][0] <= time.monotonic():
                _, sock = due.popleft()
                if sock.fileno() < 0:
                    continue
                due.append((time.monotonic() + self.GAP, sock))
                if sock not in self.missing:
                    self.words += 1
                    self.ask(sock, self.word, b'{"status":"ok"}')
            self.read(0.05)
        self.settle(30)


class Soak:
    def __init__(self, args):
        self.args = args
        self.probes = make_probes()
        self.endless = Probe("endless", CHAT, dict(chat_body(user("Define hope."), 300), ignore_eos=True))
        self.lock = threading.Lock()
        self.first, self.gaps = {"short": [], "long": []}, []
        self.counts = {"requests": 0, "wrong": 0, "lost": 0, "aborted": 0, "refused": 0, "pieces": 0}
        self.notes = []
        self.memory = []  # MiB, over time

    def count(self, name, note=None, n=1):
        with self.lock:
            self.counts[name] += n
            if note and len(self.notes) < 20:
                self.notes.append(f"{name}: {note}")

    def compare(self, name, expected, got):
        if got != expected:
            self.count("wrong", f"{name}: {expected!r} became {got!r}")

    def learn(self):
        client = Client(self.args)
        for probe in self.probes + [self.endless]:
            probe.expected = probe.pick(client.whole(probe.api.path, probe.body))
        client.close()

    def stream(self, client, probe, most=None):
        """The text, of the first `most` pieces alone if given; then the connection is closed half-way."""
        start = last = time.monotonic()
        text, n = "", 0
        for piece in client.pieces(probe.api, probe.body):
            now = time.monotonic()
            with self.lock:
                (self.gaps if n else self.first[probe.kind]).append(now - last)
            last = now
            text += piece
            n += 1
            if n == most:
                client.close()
                break
        self.count("pieces", n=n)
        return text

    def step(self, client, rng):
        kind = rng.randrange(20)
        if kind == 0:
            most = rng.randrange(1, 40)
            text = self.stream(client, self.endless, most)
            self.compare("aborted", self.endless.expected[:len(text)], text)
            self.count("aborted")
        elif kind == 1:
            change, param = rng.choice(BAD)
            reply = client.send(CHAT.path, dict(chat_body(user("Hi"), 4), **change))
            error = json.loads(reply.read())["error"]
            self.compare(f"bad {param}", (400, param), (reply.status, error["param"]))
            self.count("refused")
        elif kind <= 4:  # new to the cache, then found there, then with a second turn
            # Plain text: an answer that looks like a call to a tool shows differently in streams.
            text = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(5, 400)))
            probe = Probe("twice", COMPLETIONS, {"prompt": text, "max_tokens": 12, "temperature": 0}, kind="long")
            probe.expected = probe.pick(client.whole(probe.api.path, probe.body))
            self.compare("twice", probe.expected, self.stream(client, probe))
            turns = user(text) + [{"role": "assistant", "content": probe.expected}] + user("Define sea.")
            reply = client.whole(CHAT.path, chat_body(turns, 8))
            if not 0 <= reply["usage"]["prompt_tokens_details"]["cached_tokens"] < reply["usage"]["prompt_tokens"]:
                self.count("wrong", f"usage {reply['usage']}")
            self.count("requests", n=2)
        else:
            probe = rng.choice(self.probes)
            if probe.streams and rng.randrange(3) > 0:
                got = self.stream(client, probe)
            else:
                got = probe.pick(client.whole(probe.api.path, probe.body))
            self.compare(probe.name, probe.expected, got)
        self.count("requests")
        if rng.randrange(4) == 0:
            client.close()

    def client(self, number, end):
        rng = random.Random(number)
        client = Client(self.args)
        while time.monotonic() < end:
            try:
                self.step(client, rng)
            except Exception as error:  # noqa: BLE001 - whatever it is, a request was lost
                self.count("lost", repr(error))
                client.close()

    def resident_mib(self):
        with open(f"/proc/{self.args.pid}/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:"))

    def run(self):
        self.learn()
        idle = Idle(self.args, self.probes[0])
        opened = idle.open()
        holder = threading.Thread(target=idle.hold)
        holder.start()
        end = time.monotonic() + self.args.seconds
        threads = [threading.Thread(target=self.client, args=(i, end), daemon=True) for i in range(self.args.clients)]
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            if self.args.pid:
                self.memory.append(self.resident_mib())
            time.sleep(min(5.0, self.args.seconds / 100))
        for thread in threads:
            thread.join(300)
        hang = sum(t.is_alive() for t in threads)
        if hang:
            self.count("lost", f"{hang} clients hang", n=hang)
        idle.stop.set()
        holder.join()
        closed = idle.burst()
        for name, n in (("first", opened), ("last", closed)):
            if n != self.args.idle:
                self.count("lost", f"idle connections with a right {name} stream: {n}", n=self.args.idle - n)
        self.notes += idle.reasons[:10]
        return {"connections": self.args.idle, "first_streams": opened, "words": idle.words, "lost": idle.lost,
                "last_streams": closed}


def percentiles(values):
    values = sorted(values)
    return {f"p{p}": round(values[min(len(values) - 1, len(values) * p // 100)] * 1e3, 1) if values else None
            for p in (50, 99)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--key")
    parser.add_argument("--pid", type=int)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    soak = Soak(args)
    idle = soak.run()
    result = dict(soak.counts, first_token_ms=percentiles(soak.first["short"]),
                  first_token_of_long_prompts_ms=percentiles(soak.first["long"]), gap_ms=percentiles(soak.gaps),
                  pieces_per_second=round(soak.counts["pieces"] / args.seconds, 1), idle=idle)
    grew = False
    if soak.memory:
        n = len(soak.memory)
        warm = statistics.median(soak.memory[n * 4 // 10:n * 6 // 10])
        last = statistics.median(soak.memory[n * 9 // 10:])
        grew = last > warm * MOST_GROWTH
        result["resident_mib"] = {"first": soak.memory[0], "warm": warm, "last": last, "most": max(soak.memory)}
    print(json.dumps(result) if args.json else "\n".join(f"{k}: {v}" for k, v in result.items()))
    for note in soak.notes:
        print(note, file=sys.stderr)
    return 1 if soak.counts["wrong"] or soak.counts["lost"] or grew else 0


if __name__ == "__main__":
    sys.exit(main())
