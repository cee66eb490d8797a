"""Grammar of captions that deny a posture or a pose of the arms, data only. It extends the humanoid's grammar.

{no} is what is denied: it follows "is not".
"""

from collections.abc import Sequence

DENIED: dict[str, Sequence[str]] = {
    "stand": [
        "standing", "standing", "standing", "standing up", "standing upright", "upright", "on its feet", "on two feet",
        "in a standing {pose}", "standing on its legs", "standing tall", "erect", "standing still",
    ],
    "kneel": [
        "kneeling", "kneeling", "kneeling", "kneeling down", "on its knees", "on its knees", "in a kneeling {pose}",
        "kneeling on the {floor}", "down on both knees",
    ],
    "lotus": [
        "meditating", "in the lotus {pose}", "in the lotus {pose}", "sitting cross-legged",
        "seated in the lotus {pose}",
        "cross-legged", "in a lotus {pose}",
    ],
    "splits": [
        "doing the splits", "doing the splits", "in the splits", "in a split", "doing the side splits",
        "doing a side split", "spreading its legs on the {floor}",
    ],
    "one_leg": [
        "on one leg", "standing on one leg", "standing on one leg", "on one foot", "balancing on one leg",
        "lifting one leg", "standing on a single leg",
    ],
    "sit": ["sitting", "sitting", "sitting down", "seated", "sitting on the {floor}", "in a sitting {pose}"],
    "lie": [
        "lying", "lying down", "lying down", "lying on the {floor}", "lying on the {floor}",
        "stretched out on the {floor}",
        "flat on the {floor}",
    ],
    "raised": ["raising its arms", "raising its hands", "holding its arms up", "lifting both arms", "reaching up"],
    "hips": ["putting its hands on its hips", "holding its hips", "standing akimbo", "holding its hands at its waist"],
    "crossed": ["crossing its arms", "folding its arms", "crossing its forearms"],
}  # fmt: skip
"""What is denied, by the name of a posture or a pose of the arms."""

ARMS: dict[str, Sequence[str]] = {
    "raised": ["raised arms", "its arms raised", "raising its arms", "its hands up", "arms in the air", "lifted arms"],
    "hips": ["hands on hips", "its hands on its hips", "hands at its waist", "arms akimbo"],
    "crossed": ["crossed arms", "its arms crossed", "folded arms", "crossing its arms", "its forearms crossed"],
}
"""Poses of the arms, as they follow "without"."""

GRAMMAR: dict[str, Sequence[str]] = {
    "isnt": [
        "is not", "is not", "is not", "is not", "isn't", "isn't", "is no longer", "is never", "is not yet", "was not",
        "should not be", "must not be", "has stopped", "is anything but", "is far from", "is hardly", "not", "not",
        "is clearly not", "cannot be seen", "does not look like", "avoids", "stops", "refuses to keep",
    ],
    "denied_say": [
        "{the_robot} {isnt} {no}", "{the_robot} {isnt} {no}", "{the_robot} {isnt} {no}", "{the_robot} {isnt} {no}",
        "not {no}", "not {no}", "not {no}", "no longer {no}", "a {robot} that {isnt} {no}", "a {robot} not {no}",
        "a {robot} which {isnt} {no}", "never {no}", "anything but {no}", "any {pose} other than {no}",
        "{the_robot} in any {pose} but {no}", "there is no {robot} {no}", "{the_robot} does something else than {no}",
        "it is false that {the_robot} is {no}", "nobody is {no}", "{the_robot} without {no}", "stop {no}",
    ],
    "contrast": [
        "{x}, not {no}", "{x}, not {no}", "{x} and not {no}", "{x} instead of {no}", "{x} rather than {no}",
        "{x} without {no}", "not {no}, but {x}", "not {no} but {x}", "{the_robot} is not {no}: {x}",
        "instead of {no}, {x}",
        "it is not {no}, {x}", "no {no}: {x}", "no longer {no}, {x}", "{x}, and it is no longer {no}",
        "never {no}, {x}",
        "after {no}, {x}", "it was {no} before, now {x}", "rather than {no}, {x}", "{x}, isn't {no}",
        "{x} and is never {no}",
        "without {no}, {x}", "{x}, unlike a {robot} {no}", "{x} but is not {no}",
    ],
    "harmless": [
        "without moving", "without falling", "without falling over", "without help", "without any help",
        "without touching anything", "without a chair", "without losing its balance", "without swaying",
        "and never falls",
        "and does not move", "and does not fall", "not moving at all", "with no support", "with nothing to hold on to",
        "without a break", "and nothing else moves", "without holding on to anything", "not wobbling",
        "never letting go",
        "and does not give up", "without clothes", "and not a cat", "no matter what", "not only for a moment",
        "without lowering its head", "not tired", "never tiring", "without stopping", "and not just once",
    ],
    "without": [
        "without {no}", "without {no}", "without {no}", "without {no}", "but without {no}", "not with {no}",
        "but not with {no}", "and no {no}",
    ],
}  # fmt: skip
