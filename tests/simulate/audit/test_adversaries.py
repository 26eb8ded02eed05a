"""Attacks that a configuration rules out, found before anything runs."""

from __future__ import annotations

from pathlib import Path

from tacit.parties.runs.experiment import parse
from tacit.simulate.audit.adversaries import audit_plan

ONE_IMAGE = '[training]\nalgorithm = "fedsgd"\nfedsgd_images = 1\n'
ENCRYPTED = '[encryption]\n[aggregation]\nmode = "none"\n'
EMBEDDED = ("closed-form", "april")


def test_what_cannot_be_attacked_is_known_with_the_change_that_makes_it_attackable(tmp_path: Path) -> None:
    policy = 'least_images = 1\nuncoordinated_weights = true\nmodes = ["active", "none"]\n'
    others = f"[federation]\nclients = 3\n[policy]\n{policy}"
    images = ("closed-form", "masked-closed-form", "april")
    for toml, adversaries, asked, left, ruled_out in (
        (ONE_IMAGE, (), (), (*EMBEDDED, "subtraction"), {}),
        ("", (), EMBEDDED, (), {EMBEDDED: "training.fedsgd_images = 1"}),
        ('[training]\nalgorithm = "fedsgd"\nfedsgd_images = 4\n', (), ("dlg",), (), {("dlg",): "fedsgd_images = 1"}),
        (f"{ONE_IMAGE}{ENCRYPTED}", (), ("gram", "known-plaintext"), ("gram",), {
            ("known-plaintext",): 'encryption.initial_model = "server"'}),
        (f"{ONE_IMAGE}{ENCRYPTED}", (), ("former-key",), (), {("former-key",): "encryption.rekey_every = 1"}),
        (f"{ONE_IMAGE}{ENCRYPTED}", ("server",), ("insider",), (), {("insider",): "--as server+client-1"}),
        (ONE_IMAGE, (), ("gram",), (), {("gram",): "add [encryption]"}),
        (f'{ONE_IMAGE}[protection]\nscheme = "binary-weights"\n', (), images, images, {}),
        (ONE_IMAGE, (), ("masked-closed-form",), (), {("masked-closed-form",): 'protection.scheme = "binary-weights"'}),
        (f'{ONE_IMAGE}[aggregation]\nmode = "none"\n', (), ("subtraction",), (), {
            ("subtraction",): 'add aggregation.mode = "active"'}),
        (f'{ONE_IMAGE}[model]\nname = "lenet"\n', (), ("closed-form", "dlg"), ("dlg",), {
            ("closed-form",): "take a vision transformer"}),
        (f'{ONE_IMAGE}[model]\ntrain = ["head.*"]\n', (), ("closed-form",), (), {
            ("closed-form",): "model.train"}),
    ):  # fmt: skip
        experiment = parse(toml + others, "test")
        plan = audit_plan(
            experiment, adversaries=adversaries, attacks=asked, images=2, data=None, full=False, seed=0, out=tmp_path
        )
        assert {attack.name for attack in plan.attacks} == set(left), toml
        found = {one.attacks: one.remedy for one in plan.unattackable}
        assert found.keys() == ruled_out.keys(), toml
        assert all(remedy in found[names] for names, remedy in ruled_out.items()), found
