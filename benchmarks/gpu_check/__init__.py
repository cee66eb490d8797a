"""All that needs a GPU, checked on the machine at hand in a quarter of an hour; the result is one report to paste.

    make gpu-check
    python -m benchmarks.gpu_check --only rewards memory
    python -m benchmarks.gpu_check --device cpu --quick      # the same code on a machine without a GPU

Every check runs in its own process with a time limit. A check that fails, crashes or hangs is a line in the report, and
the others still run. Nothing is downloaded: large models get random weights, which are as fast as trained ones.
"""
