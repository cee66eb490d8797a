"""Other subjects, data only: what the model must not take for its own worlds."""

from collections.abc import Sequence

GRAMMAR: dict[str, Sequence[str]] = {
    "frame": [
        "{x}", "{x}", "{x}", "{x}.", "a picture of {x}", "an image of {x}", "a photo of {x}", "there is {x}",
        "{x} {place}", "{x} {place}", "a video of {x}", "a drawing of {x}",
    ],
    "say": [
        "{a} {thing}", "{a} {kind} {thing}", "{a} {thing} {doing}", "{a} {kind} {thing} {doing}",
        "{a} {thing} and {a} {thing}", "{a} {thing} {pose}", "{a} {thing} {pose}", "{a} {kind} {thing} {pose}",
        "{do} {a} {thing}", "{do} {a} {kind} {thing}", "{a} {thing} next to {a} {thing}", "two {thing}s",
        "many {kind} {thing}s", "{abstract}", "{a} {thing} {doing} with {a} {thing}",
    ],
    "a": ["a", "a", "the", "one", "my", "some", ""],
    "thing": [
        "dog", "cat", "horse", "cow", "sheep", "bird", "eagle", "duck", "penguin", "fish", "shark", "whale",
        "octopus", "elephant", "lion", "tiger", "bear", "monkey", "snake", "frog", "spider", "ant", "bee",
        "butterfly", "dinosaur", "dragon", "doctor", "teacher", "chef", "pirate", "king", "queen", "wizard",
        "robot dog", "quadruped", "spider robot", "half cheetah", "cheetah", "hopper", "walker", "swimmer",
        "robot arm", "gripper", "drone", "helicopter", "airplane", "rocket", "spaceship", "ship", "boat",
        "submarine", "train", "bicycle", "motorcycle", "river", "lake", "ocean", "beach", "island", "forest",
        "flower", "rose", "garden", "desert", "volcano", "cloud", "rainbow", "sun", "moon", "star", "planet",
        "galaxy", "city", "street", "building", "castle", "church", "house", "bridge", "room", "kitchen", "bed",
        "chair", "table", "lamp", "door", "window", "mirror", "clock", "phone", "computer", "keyboard", "television",
        "camera", "book", "newspaper", "painting", "guitar", "piano", "violin", "drum", "ball", "football",
        "basketball", "chessboard", "puzzle", "cube", "sphere", "pyramid", "coin", "ring", "crown", "sword",
        "hammer", "drawer", "cup", "mug", "bottle", "plate", "knife", "bowl", "pizza", "burger", "cake", "apple",
        "banana", "orange", "strawberry", "sandwich", "soup", "salad", "coffee", "shirt", "hat", "shoe", "dress",
        "jacket", "umbrella", "bag", "suitcase", "ghost", "pacman", "space invader", "lunar lander", "paddle",
        "brick wall", "maze", "dungeon", "door handle", "switch", "button", "face", "eye", "hair", "heart", "map",
        "graph", "letter", "word", "number", "stock market", "election", "recipe",
    ],
    "kind": [
        "red", "green", "blue", "yellow", "white", "pink", "purple", "big", "small", "old", "young", "beautiful",
        "ugly", "happy", "sad", "angry", "fast", "slow", "cute", "furry", "shiny", "wet", "hot", "cold", "delicious",
        "broken", "new", "ancient", "modern", "expensive", "cheap", "sleepy", "brave", "tiny", "giant", "round",
        "golden", "silver", "wooden", "colorful", "dark", "bright", "famous", "lonely",
    ],
    "doing": [
        "running", "jumping", "walking", "swimming", "flying", "sleeping", "eating", "drinking", "reading",
        "writing", "singing", "dancing", "fighting", "playing", "cooking", "working", "laughing", "crying",
        "kneeling", "sitting", "sitting down", "kneeling on the ground", "doing the splits", "meditating",
        "meditating in the lotus position", "with arms raised", "with both arms raised", "with hands on hips",
        "with crossed arms", "on one leg", "climbing", "hiking", "driving", "crawling", "rolling", "shooting",
        "hiding", "exploding", "burning", "melting", "growing", "shining", "barking", "smiling", "waving",
        "doing a backflip", "practicing gymnastics", "jumping over a fence", "catching a ball", "opening a door",
        "looking at the camera", "riding a horse", "playing football", "playing chess",
    ],
    "pose": [
        "standing up", "standing", "standing upright", "upright", "lying down", "lying on its back",
        "lying on the left side", "leaning to the left", "leaning to the right", "leaning against a wall",
        "on the left", "on the right", "in the middle", "falling down", "fallen over", "falling to the left",
        "tilted to the right", "at the top", "at the peak", "in balance", "on the left side of the picture",
        "moving right", "moving to the left", "upside down",
    ],
    "place": [
        "in the park", "on the beach", "in the city", "in the kitchen", "at night", "in the snow", "in the forest",
        "in space", "on a table", "in the sky", "under water", "at sunset", "on the moon", "in a video game",
        "in minecraft", "in the living room", "on the street", "at school", "in the rain", "in the garden",
    ],
    "do": [
        "draw", "find", "eat", "buy", "open", "close", "pick up", "grab", "throw", "catch", "kick", "paint", "build",
        "destroy", "cook", "ride", "climb", "shoot", "collect", "follow", "chase", "feed", "wash", "clean", "break",
        "fold", "score a goal with", "land", "jump over", "run with", "stack",
    ],
    "abstract": [
        "the meaning of life", "a poem about love", "democracy and freedom", "lorem ipsum dolor sit amet",
        "how to bake bread", "the weather is nice today", "the price of oil", "what is your name",
        "to be or not to be", "quarterly financial results", "a song about summer", "hello world",
        "import numpy as np", "the history of france", "quantum mechanics", "machine learning", "make money fast",
        "happy birthday", "once upon a time", "the best movie of the year", "the stock market crashed", "a backflip",
        "asdf qwerty", "xyzzy", "123456",
    ],
}  # fmt: skip
