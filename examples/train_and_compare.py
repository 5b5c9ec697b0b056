"""Plan a small GPT for two processes on this machine, train it, and compare with the prediction.

Run:     python examples/train_and_compare.py
Needs:   Millrace alone; takes some ten seconds on two cores, and as long again the first time,
         when it measures this machine (the measurement is kept in ~/.cache/millrace).
Prints:  the plan; the loss of the first and of the last step; the predicted and the measured step
         time and the error of the prediction; the three causes that differ most.
"""

import millrace

# `local:2` is two processes that share this machine's cores. Their speed is measured once.
cluster = millrace.cluster("local:2", progress=print)

planned = millrace.plan(
    "gpt-demo",
    cluster,
    global_batch=8,
    training=millrace.TrainingSpec(learning_rate=5e-3, warmup_steps=10),
    pins=millrace.Pins(tp=2),  # leave the pins out, and the search decides
)
print(planned)

# Run: one process per rank, on the source files of Python's standard library. The first five steps
# warm up and do not count in the step time.
steps = 20
measured = millrace.run(planned, steps=steps)
print(f"loss {measured.loss[0]:.3f} after step 1, {measured.loss[-1]:.3f} after step {steps}")

# Compare: the prediction and the run are traces of the same actors, joined actor by actor. The
# error is predicted / measured - 1; other programs on this machine make the run slower.
comparison = millrace.compare(planned, measured)
print(f"predicted {comparison.predicted_step_time_s * 1e3:.1f} ms")
print(f"measured  {comparison.measured_step_time_s * 1e3:.1f} ms")
print(f"error {comparison.step_time_error:+.1%}")

# Causes divide a step without overlap; the largest difference comes first.
print("the three largest causes of the difference, per step on the average rank:")
for cause in comparison.causes[:3]:
    print(
        f"  {cause.name}: predicted {cause.predicted_s * 1e3:.1f} ms, "
        f"measured {cause.measured_s * 1e3:.1f} ms ({cause.difference_s * 1e3:+.1f} ms)"
    )
