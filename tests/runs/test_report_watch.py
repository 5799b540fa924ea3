"""`psdrl report --watch`: a page on this machine alone that follows its runs."""

import http.client
import threading
from pathlib import Path

import pytest
from rich.console import Console

from psdrl.report import watch
from tests.report_runs import write_run


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode("utf-8", "replace")
    finally:
        connection.close()


def test_the_page_follows_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the runs happens when the test says so; the third one ends it as Ctrl-C does."""
    run = write_run(tmp_path / "runs" / "a", env="CartPole-v1", episodes=[(100, 1.0)], steps=300)
    (run / ".holder.json").write_text("{}", encoding="utf-8")
    seen: list[tuple[str, str]] = []
    looks = 0

    class Words(Console):
        port = 0

        def print(self, *words: object, **_: object) -> None:
            Words.port = int(str(words[0]).split(":")[2].partition("/")[0])

    def sleep(_: float) -> None:
        nonlocal looks
        seen.append((get(Words.port, "/stamp")[1], get(Words.port, "/")[1]))
        looks += 1
        if looks == 1:
            with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write('{"step": 300, "train/return": 42.0}\n')
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", sleep)
    watch.watch([tmp_path / "runs"], tmp_path / "page", 0, 1.0, Words())
    assert [stamp for stamp, _ in seen] == ["0", "1", "1"], "made again once"
    assert "; 1 not finished." in seen[0][1]
    assert "; 1 not finished." not in seen[1][1]
    assert "21.50" in seen[1][1], "the mean of the last returns"
    assert "setInterval" in seen[0][1]
    with pytest.raises(OSError, match="refused"):
        get(Words.port, "/")
    assert "report" not in {thread.name for thread in threading.enumerate()}


def test_what_goes_wrong_meanwhile_is_said_and_the_page_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "runs" / "a", env="CartPole-v1", episodes=[(100, 1.0)], steps=300)
    looks = 0

    def sleep(_: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            run.parent.rename(tmp_path / "moved")
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", sleep)
    watch.watch([tmp_path / "runs"], tmp_path / "page", 0, 1.0, Console(width=200))
    assert capsys.readouterr().out.count("does not exist") == 1
    assert (tmp_path / "page" / "index.html").exists()


def test_other_hosts_and_folders_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("mine", encoding="utf-8")
    (tmp_path / "secret").write_text("secret", encoding="utf-8")
    with watch.serving(tmp_path / "page", 0) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert get(server.server_port, "/") == (200, "mine")
        assert get(server.server_port, "/", host="evil.example")[0] == 403
        assert get(server.server_port, "/../secret")[0] == 404
        with pytest.raises(Exception, match="cannot be used"), watch.serving(tmp_path / "page", server.server_port):
            pass
