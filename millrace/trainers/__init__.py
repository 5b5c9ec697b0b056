"""Trainers: settings of other training frameworks, written from plans and read back.

In comes a Plan, out go the files that its trainer is started with (`export`); in come such files or
a command line, out comes the question that they answer: model, devices, batch and pins (`read`). A
`TrainingJob` stands between: what every trainer is told, in the planner's words.

Read `job.py` first, then `trainer.py` (what a trainer's record holds), then one trainer, e.g.
`megatron/`. `catalogue.py` lists them all.
"""
