"The box refuses every way out: 100 % of this list."
import os
import socket
import time

import pytest

from lm_predictor.agent.conversation.sandbox import Box, BoxError

SECRET = "the secret that must not be read"


@pytest.fixture
def box(tmp_path):
    for folder in ("root/work/sub", "root/lib/nn", "root/library", "root/work2", "outside"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "root/lib/nn/linear.py").write_text("class Linear: pass\n")
    for place in ("root/library/secret.py", "root/work2/secret.md", "outside/secret.md", "outside/secret.py", "root/secret.py"):
        (tmp_path / place).write_text(SECRET)
    work, lib = tmp_path / "root/work", tmp_path / "root/lib"
    (work / "schema.json").write_text("{}")
    (work / "link.md").symlink_to(tmp_path / "outside/secret.md")
    (work / "dir").symlink_to(tmp_path / "outside")
    (work / "far.md").symlink_to("link.md")
    (work / "loop.md").symlink_to("loop.md")
    (work / "gone.md").symlink_to(tmp_path / "outside/new.md")
    (work / "zero.md").symlink_to("/dev/zero")
    (work / "self.md").symlink_to("/proc/self/environ")
    (work / "up").symlink_to("..")
    (work / "folder.md").mkdir()
    os.link(tmp_path / "outside/secret.md", work / "hard.md")
    os.mkfifo(work / "pipe.md")
    (lib / "link.py").symlink_to(tmp_path / "outside/secret.py")
    (lib / "sibling").symlink_to("../library")
    (lib / "bytes.py").write_bytes(b"\xff\xfe\x00")
    return Box({"work": work, "lib": lib}, given=("schema.json",))


PATHS = [  # read, and as what is searched
    "..", "../", "../secret.py", "work/..", "work/../secret.py", "work/../../outside/secret.md", "work/sub/../../library/secret.py", "lib/nn/../../library/secret.py", "lib/../library/secret.py",
    "work/./../secret.py", "work/.", ".", "./work", "lib//nn", "/", "/etc/passwd", "//etc/passwd", "/proc/self/environ", "/dev/zero", "~", "~/.ssh/id_rsa", "work/~/x.md", "file:///etc/passwd",
    "library/secret.py", "work2/secret.md", "worksecret.md", "Work/schema.json", "WORK/../secret.py", "outside/secret.md", "C:\\secret", "work\\..\\secret.py", "work/..\\secret.py", "..\\secret.py",
    "work/%2e%2e/secret.py", "work/..%2fsecret.py", "work/$HOME", "work/`id`", "work/$(id)", "work/|id", "work/*", "work/'x'", "work/\0", "work/schema.json\0.md", "work/a\nb.md", "work/a\rb.md", "work/a\tb",
    "work/\u202e.md", "work/\u2024\u2024/secret.py", "work/\uff0e\uff0e/secret.py", "work/ ../secret.py", "work/.. /secret.py", "work/... ", "work/link.md", "work/dir/secret.md", "work/far.md", "work/loop.md",
    "work/gone.md", "work/zero.md", "work/self.md", "work/up/library/secret.py", "work/hard.md", "work/pipe.md", "lib/link.py", "lib/sibling/secret.py", "lib/bytes.py", "work/" + "a/" * 300, "work/" + "x" * 500,
    "", " ", None, 3, True, ["work/schema.json"], {"path": "work"}, b"work/schema.json"]

WRITES = [  # written, besides all of those above
    "lib/new.md", "lib/nn/linear.py", "lib/new.json", "work/run.py", "work/run.sh", "work/a", "work/.md", "work/.hidden.md", "work/a.md/", "work/a.md.py", "work/a.json.txt", "work/a.MD", "work/sub/a.md", "work/new/a.md",
    "work/schema.json", "work/folder.md", "work", "work/", "work/a.py\0.md", "work/dir/new.md", "lib/../work/a.md", "a.md", "work/__init__.py", "work/conftest.py", "work/a.ipynb", "work/a.pth"]

PATTERNS = ["../*", "/*", "/etc/*", "work/../*", "work/../../outside/*", "**", "*", "*/..", "~/*", "w*/schema.json", "?ork/*", "library/*", "lib/../library/*", "", "\0", "lib//*"]
SLOW = ["(a+)+$", "(a*)*b", "(a|aa)+$", "([a-z]+)*!", "(x+x+)+y", "(.*)(.*)(.*)(.*)x", ".*.*.*.*x", r"(a+)+\1!", "(?:a?){30}a{30}!", "((a{100}){100})b"]
REGEXES = ["(", "[", "a" * 201, "", "a{1000}{1000}{9}{9}", "((((a{1000}){1000}){1000}){1000})", "(?:(?:a{1,99999}){1,99999}){1,99999}b", "(?P<n", "*"]


def refused(box, tool, **given):
    with pytest.raises(BoxError) as e:
        box.call(tool, given)
    text = str(e.value)
    assert text and "\n" not in text and SECRET not in text and str(box.roots["work"].parent) not in text and len(text) < 300


def snapshot(top):
    return {p: p.read_bytes() if p.is_file() and not p.is_symlink() else os.readlink(p) if p.is_symlink() else None
            for p in sorted(top.rglob("*")) if not p.is_fifo()}


def test_list_is_long_enough():
    assert len(PATHS) * 2 + len(WRITES) + len(PATTERNS) + len(REGEXES) + len(SLOW) >= 60 and len(PATHS) >= 60


@pytest.mark.parametrize("path", PATHS, ids=lambda p: ascii(p)[:40])
def test_read(box, path):
    refused(box, "read", path=path)


@pytest.mark.parametrize("path", [*PATHS, *WRITES], ids=lambda p: ascii(p)[:40])
def test_write(box, path, tmp_path):
    before = snapshot(tmp_path)
    refused(box, "write", path=path, content="owned")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("path", [p for p in PATHS if not isinstance(p, str) or not p.startswith(("work/link", "work/pipe"))], ids=lambda p: ascii(p)[:40])
def test_grep(box, path):
    refused(box, "grep", pattern="secret", path=path)


@pytest.mark.parametrize("pattern", PATTERNS, ids=ascii)
def test_glob(box, pattern):
    refused(box, "glob", pattern=pattern)


@pytest.mark.parametrize("pattern", REGEXES, ids=lambda p: ascii(p)[:30])
def test_regular_expressions(box, pattern):
    refused(box, "grep", pattern=pattern, path="lib")


@pytest.mark.parametrize("pattern", SLOW, ids=ascii)
def test_slow_patterns(box, pattern):
    "A search that would not end is given up in seconds of this process; one that ends says what it found"
    (box.roots["lib"] / "slow.py").write_text("\n".join(("a" * 399 + "?", "x" * 399 + "?", "ab" * 199 + "?")))
    start = time.process_time()
    try:
        assert box.call("grep", {"pattern": pattern, "path": "lib/slow.py"})
    except BoxError as e:
        assert str(e).endswith("takes longer than 2 s on one line; repeat fewer groups, or none")
    assert time.process_time() - start < 10


def test_searches_follow_no_link(box):
    "Files behind links are not found by searching from above"
    for path in ("lib", "work"):
        assert box.call("grep", {"pattern": "secret", "path": path}) == f"no line matches 'secret' in {path}"
    assert box.call("glob", {"pattern": "lib/**/*.py"}).splitlines() == ["lib/bytes.py", "lib/nn/linear.py"]
    assert "secret" not in box.call("glob", {"pattern": "work/**"}) and "dir" not in box.call("glob", {"pattern": "work/**"})


def test_socket(box, tmp_path, monkeypatch):
    monkeypatch.chdir(box.roots["work"])
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("s.md")
        refused(box, "read", path="work/s.md")
        refused(box, "write", path="work/s.md", content="x")


def test_large(box):
    "Files and results beyond the limits are refused or cut, and say so"
    (box.roots["lib"] / "big.py").write_text("x = 1\n" * 1000)
    text = box.call("read", {"path": "lib/big.py"})
    assert text.count("\n") == 400 and text.endswith("(600 more lines; read on with offset=401)")
    assert box.call("grep", {"pattern": "x", "path": "lib/big.py"}).endswith("(900 more; narrow it down)")
    (box.roots["lib"] / "wide.py").write_text("y" * 5000)
    assert box.call("read", {"path": "lib/wide.py"}).endswith("... (4600 more characters)")
    (box.roots["lib"] / "huge.py").write_bytes(b"z" * 4_000_001)
    refused(box, "read", path="lib/huge.py")
    refused(box, "write", path="work/a.md", content="x" * 400_001)
    refused(box, "read", path="lib/big.py", offset=0)
    refused(box, "read", path="lib/big.py", offset=1001)


def test_what_is_allowed(box):
    assert box.call("write", {"path": "work/analysis.md", "content": "line\n"}) == "work/analysis.md: 5 characters, 1 lines"
    assert box.call("read", {"path": "work/analysis.md"}) == "    1  line"
    assert box.call("write", {"path": "work/analysis.md", "content": "\ud800"}).startswith("work/analysis.md: 1")  # half a character is replaced
    assert box.call("read", {"path": "lib/nn/linear.py", "limit": 1}) == "    1  class Linear: pass"
