"""`tacit audit`: results with and without protection, and refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.cli.outputs import check_output
from tests.simulate.audit.few_images import write_few

Tacit = Callable[..., Result]
SECURITY = Path(__file__).parents[2] / "docs" / "security.json"


@pytest.mark.end_to_end
@pytest.mark.smoke
def test_an_audit_finds_what_is_unprotected_and_not_what_the_sum_hides(tacit: Tacit, tmp_path: Path) -> None:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        'name = "case"\n[federation]\nclients = 3\n[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n'
        "[aggregation]\nvalue_bits = 24\n[policy]\nleast_images = 1\n"
    )
    out = tmp_path / "out"
    result = tacit("audit", str(experiment), "--images", "6", "--seed", "1", "--out", str(out))
    assert result.exit_code == 0, result.output
    audited = check_output(out / "audit.json", "audit")
    found = {(row["arm"], row["adversary"], row["observation"], row["attack"]): row for row in audited["image_attacks"]}
    alone = found["unprotected", "server", "upload", "closed-form"]
    assert alone["verdict"] == "reconstructed"
    assert alone["metrics"]["psnr"] > 60
    # Of one honest client among colluders the sum hides nothing.
    colluding = found["as-configured", "server+client-2+client-3", "opened sum minus colluding clients", "closed-form"]
    assert colluding["verdict"] == "reconstructed"
    assert found["as-configured", "server", "masked upload", "closed-form"]["verdict"].startswith("not reconstructed")
    assert not found["as-configured", "server", "opened sum", "closed-form"]["metrics"]["reconstructed"]
    seen = {(row["arm"], row["adversary"], row["observation"]): row for row in audited["observations"]}
    upload = seen["unprotected", "server", "upload"]
    assert (upload["verdict"], upload["labels"]["accuracy"], upload["single_client_share"]) == (
        "reconstructed",
        1.0,
        1.0,
    )
    masked, opened = (seen["as-configured", "server", kind] for kind in ("masked upload", "opened sum"))
    assert (masked["verdict"], masked["single_client_share"]) == ("not reconstructed by the attacks listed", 0.0)
    # Labels are not what a sum of few hides.
    assert (opened["verdict"], opened["single_client_share"]) == ("reconstructed", 0.0)
    april = found["as-configured", "server", "masked upload", "april"]
    assert april["verdict"] == "not attacked"
    assert "unprotected case" in april["reason"]
    assert "the closed form reconstructs images up to batch 1, local steps 5, cohort 1" in result.output
    assert sum(one["factor"] == "channel" for one in audited["closed_form"]) == 8
    page = (out / "audit.html").read_text()
    assert "Reconstructed up to batch 1, local steps 5, cohort 1." in " ".join(page.split())
    assert page.count("data:image/png;base64,") > 4
    headline = "images reconstructed by server+client-2+client-3 (closed-form); labels reconstructed"
    assert f"your configuration: {headline}" in result.output.splitlines()
    assert f"Your configuration: {headline}." in page
    assert "protected</td>" not in page
    # Keys were in them.
    assert not (out / "recordings").exists()


@pytest.mark.exhaustive
def test_the_page_on_what_leaks_has_the_verdicts_of_an_audit(tacit: Tacit, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert tacit("audit", "--seed", "0", "--out", out).exit_code == 0
    found, recorded = check_output(out / "audit.json", "audit"), check_output(SECURITY, "audit")

    def reconstructed(result: dict[str, Any]) -> dict[tuple[str, ...], bool]:
        names = ("arm", "adversary", "observation", "attack")
        return {
            tuple(row[name] for name in names): row["verdict"] == "reconstructed" for row in result["image_attacks"]
        }

    def limits(result: dict[str, Any]) -> list[tuple[str, str, bool]]:
        return [(one["factor"], one["setting"], one["metrics"]["reconstructed"]) for one in result["closed_form"]]

    # Masks and keys are drawn anew, so that numbers differ; verdicts do not.
    assert reconstructed(found) == reconstructed(recorded)
    assert limits(found) == limits(recorded)
    for row in found["image_attacks"]:
        if row["verdict"] == "reconstructed":
            assert row["metrics"]["psnr"] > 60
        if row["arm"].startswith("secure-sum") and row["adversary"] == "server":
            assert row["verdict"] != "reconstructed"


@pytest.mark.exhaustive
def test_attacks_prove_themselves_on_single_uploads_whoever_is_asked_for(tacit: Tacit, tmp_path: Path) -> None:
    out = tmp_path / "out"
    given = ("--as", "server+client-2+client-3", "--attack", "closed-form", "--attack", "april", "--images", "5")
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        '[federation]\nclients = 3\n[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n'
        "[aggregation]\nvalue_bits = 24\n[policy]\nleast_images = 1\n"
    )
    assert tacit("audit", experiment, *given, "--seed", "1", "--out", out).exit_code == 0
    rows = check_output(out / "audit.json", "audit")["image_attacks"]
    assert [row["arm"] for row in rows[:2]] == ["unprotected", "unprotected"]
    verdicts = {(row["adversary"], row["attack"]): row["verdict"] for row in rows if row["arm"] != "unprotected"}
    together = "server+client-2+client-3"
    assert verdicts == {(together, "closed-form"): "reconstructed", (together, "april"): "not attacked"}


@pytest.mark.exhaustive
def test_a_new_key_does_not_lock_a_removed_member_out_who_works_with_the_server(tacit: Tacit, tmp_path: Path) -> None:
    out = tmp_path / "out"
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        '[federation]\nclients = 3\n[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n'
        '[aggregation]\nvalue_bits = 24\nmode = "none"\n[encryption]\nrekey_every = 1\n'
        '[policy]\nmodes = ["none"]\nleast_images = 1\n'
    )
    keys = ("insider", "former-key", "removed-member")
    given = [word for name in keys for word in ("--attack", name)]
    result = tacit("audit", experiment, "--as", "server+client-3", *given, "--images", "6", "--seed", "1", "--out", out)
    assert result.exit_code == 0, result.output
    rows = [row for row in check_output(out / "audit.json", "audit")["image_attacks"] if row["arm"] != "unprotected"]
    assert [(row["attack"], row["observation"], row["verdict"]) for row in rows] == [
        ("insider", "upload and a member's keys", "reconstructed"),
        ("former-key", "upload and a member's keys", "not reconstructed by the attacks listed"),
        ("removed-member", "upload and a member's keys", "reconstructed"),
    ]
    # Six images are of three rounds with two honest clients; in the first the key was not renewed yet.
    assert [row["metrics"]["images"] for row in rows] == [6, 4, 4]
    assert min(rows[0]["metrics"]["psnr"], rows[2]["metrics"]["psnr"]) > 60


@pytest.mark.exhaustive
def test_a_server_that_cheats_has_an_image_without_groups_and_no_more_than_groups_with_them(
    tacit: Tacit, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(
        '[federation]\nclients = 3\n[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n'
        "[aggregation]\nvalue_bits = 24\n[policy]\nleast_images = 1\n"
    )
    result = tacit("audit", experiment, "--as", "server", "--attack", "subtraction", "--seed", "1", "--out", out)
    assert result.exit_code == 0, result.output
    audited = check_output(out / "audit.json", "audit")
    proof, alone, groups = audited["image_attacks"]
    assert (proof["arm"], proof["observation"], proof["verdict"]) == ("unprotected", "upload", "reconstructed")
    assert (alone["observation"], alone["honest_clients"], alone["verdict"]) == (
        "difference of two sums",
        1,
        "reconstructed",
    )
    # 80.2 dB with this seed.
    assert alone["metrics"]["psnr"] > 60
    assert alone["metrics"]["re_identification_rate"] == 1.0
    # Of two images in every difference the closed form gives neither.
    assert (groups["observation"], groups["honest_clients"], groups["metrics"]["images"]) == (
        "difference of two sums",
        2,
        5,
    )
    assert not groups["metrics"]["reconstructed"]
    assert "no groups, a server that leaves out one after the other of 10 clients: images reconstructed by server" in (
        " ".join(result.output.split())
    )
    assert not (out / "recordings").exists()


@pytest.mark.exhaustive
def test_ciphertexts_alone_re_identify_an_image_and_give_none(tacit: Tacit, tmp_path: Path) -> None:
    out, experiment = tmp_path / "out", tmp_path / "experiment.toml"
    experiment.write_text(
        '[federation]\nclients = 3\n[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n'
        '[aggregation]\nvalue_bits = 24\nmode = "none"\n[encryption]\nmatrix = "orthogonal"\n'
        '[policy]\nmodes = ["none"]\nleast_images = 1\n'
    )
    given = ("--as", "server", "--attack", "gram", "--images", "6", "--seed", "1", "--out", out)
    result = tacit("audit", experiment, *given)
    assert result.exit_code == 0, result.output
    rows = check_output(out / "audit.json", "audit")["image_attacks"]
    found = {row["arm"]: row for row in rows if row["observation"] == "upload"}
    for arm in ("unprotected", "as-configured"):
        metrics = found[arm]["metrics"]
        assert (found[arm]["verdict"], metrics["re_identification_rate"]) == ("re-identified, not reconstructed", 1.0)
        assert (metrics["psnr"], metrics["ssim"], metrics["advantage_db"]) == (None, None, None)
    page = (out / "audit.html").read_text()
    assert "6 images, 100% re-identified" in " ".join(page.split())
    assert "None dB" not in page
    assert "nan" not in result.output


@pytest.mark.exhaustive
def test_an_outsider_on_the_wire_reads_lengths_and_no_image(tacit: Tacit, tmp_path: Path) -> None:
    """The attack proves itself in the server's row: the same messages in the clear."""
    out, experiment = tmp_path / "out", tmp_path / "experiment.toml"
    experiment.write_text(
        '[federation]\nclients = 3\n[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n'
        '[aggregation]\nvalue_bits = 24\nmode = "none"\n[policy]\nmodes = ["none"]\nleast_images = 1\n'
    )
    given = ("--as", "wire", "--attack", "closed-form", "--images", "6", "--seed", "1", "--out", out)
    result = tacit("audit", experiment, *given)
    assert result.exit_code == 0, result.output
    rows = check_output(out / "audit.json", "audit")["image_attacks"]
    server, wire = (next(row for row in rows if row["adversary"] == name) for name in ("server", "wire"))
    assert (server["observation"], server["verdict"]) == ("upload", "reconstructed")
    assert wire["verdict"] == "not reconstructed by the attacks listed"
    assert wire["metrics"]["psnr"] < 20
    # Six images of a row take seven rounds; the model has 277,130 numbers.
    words = re.search(r"3 clients sent up to 7 updates of ([0-9,]+) numbers, 0 stopped early", wire["observation"])
    assert words is not None
    assert 277_130 <= int(words[1].replace(",", "")) < 1.01 * 277_130
    assert not (out / "recordings").exists()


@pytest.mark.exhaustive
@pytest.mark.end_to_end
def test_rounds_that_come_to_nothing_are_said_not_to_have_been_attacked(tacit: Tacit, tmp_path: Path) -> None:
    out, experiment = tmp_path / "out", tmp_path / "experiment.toml"
    experiment.write_text(
        '[federation]\nclients = 3\nrounds = 1\n[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n'
        '[aggregation]\nmode = "semi-honest"\n[policy]\nmodes = ["semi-honest"]\nleast_images = 1\n'
        "[deadlines]\nphase = 1e-6\n"
    )
    attacks = ("--attack", "closed-form", "--attack", "subtraction")
    result = tacit("audit", experiment, *attacks, "--images", "2", "--out", out)
    assert result.exit_code == 1
    assert (
        "nothing is protected, as configured: secure sum of 3 (semi-honest), secure sum, no groups, a server that "
        "leaves out one after the other of 10 clients: every round ended before"
    ) in " ".join(result.stderr.split())
    rows = check_output(out / "audit.json", "audit")["image_attacks"]
    assert {(row["arm"], row["adversary"]) for row in rows} == {
        ("unprotected", "server"),
        ("unprotected", "client-3"),
        ("as-configured", "server"),
        ("as-configured", "server+client-3"),
        ("as-configured", "server+client-2+client-3"),
        ("as-configured", "client-3"),
        ("subtraction-no-groups", "server"),
    }
    assert {row["verdict"] for row in rows} == {"not attacked"}
    assert {row["reason"] for row in rows} == {"on the unprotected case no round came so far that it could be tried"}
    assert "no round came so far that it could be tried" in (out / "audit.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--attack", "guessing"), "there is no attack 'guessing': expected closed-form, masked-closed-form"),
        (("--as", "nobody"), "there is no party 'nobody'; expected wire alone, server, client-1"),
        (("--as", "server+server"), "name every party once"),
        (("--as", "+".join(f"client-{number}" for number in range(1, 6))), "nobody is left to attack"),
        (("--as", "server+wire"), "there is no party 'wire'; expected wire alone, server, client-1"),
        (("--data", "nowhere.npz"), "there is nothing; give an .npz file"),
        (("missing.toml",), "missing.toml"),
        (("--images", "1"), "greater than or equal to 2"),
        (("--seed", str(2**63)), f"less than or equal to {2**63 - 1}"),
    ],
)
def test_refusals_say_what_would_do(tacit: Tacit, arguments: tuple[str, ...], said: str) -> None:
    result = tacit("audit", *arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


@pytest.mark.exhaustive
def test_rounds_on_the_same_image_disclose_more_of_binary_weights_than_one(tacit: Tacit, tmp_path: Path) -> None:
    """Five clients with an image each: single uploads had 12.4 dB, and what nine rounds of a client give 21.7 dB."""
    out, images, experiment = tmp_path / "out", tmp_path / "few.npz", tmp_path / "experiment.toml"
    write_few(images, 5)
    experiment.write_text(
        'name = "case"\n[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n[aggregation]\nvalue_bits = 24\n'
        'mode = "none"\n[policy]\nmodes = ["none"]\nleast_images = 1\n'
        '[protection]\nscheme = "binary-weights"\nzero_probability = 0.2\n'
    )
    given = ("--as", "server", "--attack", "masked-closed-form", "--images", "8", "--seed", "1", "--out", out)
    result = tacit("audit", experiment, "--data", images, *given)
    assert result.exit_code == 0, result.output
    rows = check_output(out / "audit.json", "audit")["image_attacks"]
    found = {row["observation"]: row for row in rows if row["arm"] == "as-configured" and row["honest_clients"] == 1}
    assert found["upload"]["verdict"] != "reconstructed"
    pooled = found["upload, 9 rounds pooled"]
    assert (pooled["verdict"], pooled["metrics"]["images"]) == ("reconstructed", 5)
    assert pooled["metrics"]["psnr"] > found["upload"]["metrics"]["psnr"] + 5
    # Of many images every round has others.
    out = tmp_path / "many"
    given = ("--as", "server", "--attack", "masked-closed-form", "--images", "6", "--seed", "1", "--out", out)
    assert tacit("audit", experiment, *given).exit_code == 0
    rows = check_output(out / "audit.json", "audit")["image_attacks"]
    (row,) = (row for row in rows if row["observation"] == "upload, rounds pooled" and row["arm"] == "as-configured")
    assert (row["verdict"], row["metrics"]) == ("not attacked", None)
    assert row["reason"] == "in 7 rounds no client trained on the same images again"
