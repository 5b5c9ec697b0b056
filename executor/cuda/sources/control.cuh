// What changes from step to step, in device memory, so that one captured step serves all.
#pragma once
#include "scalar.cuh"

struct Control {
  i64 step;            // over all runs, from 0; resuming goes on
  i64 run_step;        // of this run
  i64 updates;         // steps whose gradients were finite, over all runs
  i64 good_steps;      // of these, since the loss scale last changed
  double loss_scale;   // what gradients are multiplied by (1 but for fp16)
  double scale_growth; // factor after `growth_interval` good steps; 1: the scale stays
  i64 growth_interval;
  int margin_bits;     // smallest margin of a choice of experts, as bits of a float
  int skipped;         // steps without an update
};
