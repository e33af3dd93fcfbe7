// Package compose tests that the features of package autograd compose: random trainings under
// random subsets of them give what the plain training gives, to the bit, also after a failure. It
// has tests alone, and uses what a program can use.
package compose
