// Package remat saves memory by recomputing activations in the backward pass (activation
// checkpointing).
//
//	for i, b := range blocks {
//		blocks[i] = remat.Layer(b)
//	}
//
// A [Layer] keeps none of its activations for the backward pass; [Checkpoint] does the same for a
// function. A [Plan] chooses layers by the profile of a step, so that the step's memory stays
// within a budget and as little as possible is computed twice.
//
// The second run uses the same random numbers, so gradients are bit-identical. It costs about one
// more forward pass of the layer or function.
package remat
