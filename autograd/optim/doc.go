// Package optim updates parameters from their gradients: optimisers, learning rate schedules, and
// gradient clipping.
//
//	adam := optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(1e-3)})
//	schedule, err := optim.NewScheduler(adam, optim.CosineAnnealingLR{TMax: 1000})
//	_, err = tape.Backward(loss)
//	err = optim.ClipGradNorm(ctx, model.Parameters(), 1)
//	err = errors.Join(adam.Step(ctx), schedule.Step(), adam.ZeroGrad(ctx))
//
// [Minimize] is short for Backward, Step and ZeroGrad, and a [Loop] for all of it. [InBackward]
// updates parameters and frees their gradients during the backward pass, so that a step never holds
// all gradients.
//
// The first error of a constructor sticks to its optimiser: [Base.Err], Prepare and Step return it.
// To write your own optimiser, embed [Base] and compute the updates with [StepRule] or with
// operations of package tensor.
//
// A step updates the parameters that have a gradient in place and does not wait for the device. The
// optimiser's state is allocated by Prepare or by the first step, and freed by Close. In a capture
// ([tensor.Runtime.Capture]) each replay uses the learning rate and the step number of its own
// step.
//
// Default values and results are those of torch.optim.
package optim
