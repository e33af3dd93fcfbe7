// Package remat saves memory by computing activations again in the backward pass, which PyTorch
// calls activation checkpointing.
//
//	for i, b := range blocks {
//		blocks[i] = remat.Layer(b)
//	}
//
// A [Layer] keeps none of its activations for the backward pass; [Checkpoint] is the same for a
// function. A [Plan] chooses layers by the profile of a step, so that the step's memory keeps
// within a budget and as little as possible is computed twice.
//
// The second run takes the same random numbers, so that gradients are bit-identical. It costs about
// a forward pass of the part.
package remat
