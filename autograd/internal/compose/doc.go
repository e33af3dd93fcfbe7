// Package compose tests that the features of package autograd compose: random trainings under
// random subsets of features are bit-identical to the training without them, also after a failure.
// It has only tests, which use only the exported API.
package compose
