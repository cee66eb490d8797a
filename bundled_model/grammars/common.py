"""Grammar that the captions of all domains share, data only: phrases around a statement {x}."""

from collections.abc import Sequence

GRAMMAR: dict[str, Sequence[str]] = {
    "frame": [
        "{x}", "{x}", "{x}", "{x}", "{x}", "{x}", "{x}", "{x}.", "{x}!", "{picture} {x}", "{picture} {x}",
        "{picture} {x}", "{x} {scene}", "{x} {scene}", "{picture} {x} {scene}", "{name}: {x}", "{name}, {x}",
        "{see} {x}", "now {x}", "ok, {x}", "{x} now", "{x} please", "{x} again",
    ],
    "picture": [
        "a bright image of", "a small picture of", "imagine", "a depiction of", "a render of",
        "the final frame shows", "an observation of", "an observation in which", "a close look at",
        "a camera image of", "a 2d drawing of", "an animation of", "the last image:", "a picture of", "an image of",
        "a photo of", "a photograph of", "a drawing of", "a rendering of", "a screenshot of", "a frame of",
        "a frame showing", "an image showing", "a picture showing", "a scene with", "a scene where",
        "an image where", "a picture in which", "a view of", "a simulation of", "a simulated", "an illustration of",
        "a diagram of", "a video frame of", "a side view of", "a sketch of", "a computer graphic of",
        "a state where", "a state in which", "a situation where", "a moment when", "a snapshot of", "a still of",
        "a clear picture of", "a simple image of", "an example of",
    ],
    "see": [
        "please make sure that", "make sure", "make sure that", "ensure that", "ensure", "the goal is that",
        "the aim is that", "the objective is that", "i hope that", "our aim:", "reward when", "reward the agent if",
        "the agent should be rewarded when", "good if", "what i want:", "wow,", "yes,", "oh look,", "uh oh,",
        "oops,", "somehow", "as expected,", "observe that", "suppose that", "in the current state",
        "in the final state,", "the result is that", "eventually", "see how", "watch how",
        "the policy makes sure that", "everyone can see that", "we see", "you can see", "there is", "here is",
        "this shows", "this is", "it shows", "the image shows", "the picture shows", "the frame shows", "shows",
        "showing", "look,", "it looks like", "it seems that", "clearly", "the agent sees", "one can see",
        "notice that", "in this frame,", "in this picture", "in the image", "at this moment", "the camera sees",
        "the screen shows", "the simulation shows",
    ],
    "scene": [
        "while moving", "without stopping", "until the end", "for a long time", "forever", "like a pro",
        "with great skill", "in the middle of the frame", "in front of a white background", "on a computer screen",
        "of the simulation", "of the environment", "for two hundred steps", "for the entire time", "in every frame",
        "in a drawing", "so far", "here", "there", "in this state", "once more", "today", "in the simulation",
        "in the environment", "on a white background", "in this picture", "in the image", "in the game",
        "in the simulator", "in the gym environment", "on the screen", "in a physics simulation", "at all times",
        "the whole time", "for as long as possible", "all the time", "at the end", "right now", "at the moment",
        "during the whole episode", "in this frame", "in the classic control problem", "successfully",
        "and nothing else",
    ],
    "name": ["the task", "goal", "the goal", "task", "reward", "state", "result", "status"],
    "is": [
        "is nicely", "rests", "is held", "is found", "is now almost", "can be seen", "is seen", "is going to be",
        "is supposed to be", "is to be", "has been", "is always", "continues to be", "is kept", "got", "are",
        "not moving, is", "turns out", "is set", "is currently", "is positioned", "is", "is", "is", "is", "is",
        "is now", "remains", "stays", "stands", "keeps", "being", "should be", "must be", "has to be", "looks",
        "appears", "appears to be", "seems", "that is", "which is", "sits", "will be", "needs to be", "ends up",
        "gets", "becomes", "is kept", "ought to be", "was", "is still", "finally",
    ],
    "very": [
        "pretty ", "as good as ", "precisely ", "absolutely ", "entirely ", "properly ", "beautifully ", "safely ",
        "more or less ", "roughly ", "about ", "practically ", "super ", "always ", "steadily ", "constantly ",
        "still ", "almost perfectly ", "", "", "", "", "", "", "very ", "perfectly ", "almost ", "nearly ",
        "exactly ", "completely ", "fully ", "totally ", "nicely ", "quite ", "truly ", "really ",
    ],
    "and": [" and ", " and ", " while ", ", ", ", and ", " with ", "; ", " as ", " but "],
}  # fmt: skip
