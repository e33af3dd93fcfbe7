package tensor

import (
	"fmt"
	"slices"
	"strings"
)

// LossOption changes what a loss computes, from PyTorch's default: the mean over all elements. Options that a loss does not
// have are an error.
type LossOption func(*LossConfig)

// LossConfig is what the options of a loss say.
type LossConfig struct {
	Reduction      Reduction
	IgnoreIndex    int     // -100, unless an option says otherwise
	LabelSmoothing float64 // between 0 and 1
	LogTarget      bool    // KLDivLoss takes logarithms of its target
	// Weight are weights of classes (classes), or for BCEWithLogits of elements; PosWeight is for BCEWithLogits. They broadcast
	// to what they weigh, have its dtype, and are constants. nil: 1.
	Weight, PosWeight *Tensor

	given []string // names of the options
}

// Reduction is what a loss does with the losses of the elements.
type Reduction uint8

const (
	MeanReduction      Reduction = iota // of all elements, or of the weights of their classes
	SumReduction                        // of all elements
	NoReduction                         // a loss for each element
	BatchMeanReduction                  // the sum over the first dimension, of KLDivLoss
)

// ReduceMean is the option for the mean, which is the default (reduction="mean").
func ReduceMean(c *LossConfig) { c.reduce(MeanReduction) }

// ReduceSum is the option for the sum (reduction="sum").
func ReduceSum(c *LossConfig) { c.reduce(SumReduction) }

// ReduceNone is the option for a loss of each element (reduction="none").
func ReduceNone(c *LossConfig) { c.reduce(NoReduction) }

// ReduceBatchMean is KLDivLoss's option for the sum over the first dimension
// (reduction="batchmean").
func ReduceBatchMean(c *LossConfig) { c.reduce(BatchMeanReduction) }

// LogTarget is KLDivLoss's option for a target of logarithms (log_target=True).
func LogTarget(c *LossConfig) {
	if c != nil {
		c.LogTarget, c.given = true, append(c.given, "LogTarget")
	}
}

// IgnoreIndex is the option for another label of rows that don't count than -100.
func IgnoreIndex(label int) LossOption {
	return func(c *LossConfig) { c.IgnoreIndex, c.given = label, append(c.given, "IgnoreIndex") }
}

// LabelSmoothing is the option to spread so much of each label, between 0 and 1, evenly over the classes.
func LabelSmoothing(amount float64) LossOption {
	return func(c *LossConfig) { c.LabelSmoothing, c.given = amount, append(c.given, "LabelSmoothing") }
}

// Weight is the option for weights of classes, or of BCEWithLogits' elements.
func Weight(w *Tensor) LossOption {
	return func(c *LossConfig) { c.Weight, c.given = w, append(c.given, "Weight") }
}

// PosWeight is the option for weights of the positive answers of BCEWithLogits.
func PosWeight(w *Tensor) LossOption {
	return func(c *LossConfig) { c.PosWeight, c.given = w, append(c.given, "PosWeight") }
}

func (c *LossConfig) reduce(r Reduction) {
	if c != nil {
		c.Reduction = r
	}
}

// NewLossConfig is the configuration that options make of the default.
func NewLossConfig(options ...LossOption) LossConfig {
	if len(options) == 0 {
		return LossConfig{IgnoreIndex: -100} // which stays off the heap
	}
	c := LossConfig{IgnoreIndex: -100}
	for _, o := range options {
		if o != nil {
			o(&c)
		}
	}
	return c
}

// Option is the option that sets all of the configuration.
func (c LossConfig) Option() LossOption { return func(to *LossConfig) { *to = c } }

// Check is an error for an option that is none of those that the loss takes, or of a wrong value.
func (c *LossConfig) Check(op string, takes ...string) error {
	for _, name := range c.given {
		if !slices.Contains(takes, name) {
			return fmt.Errorf("tensor: %s: %w: it has no option %s; it takes a reduction%s", op, ErrInvalid, name, listed(takes))
		}
	}
	if c.Reduction > NoReduction && !(c.Reduction == BatchMeanReduction && slices.Contains(takes, "ReduceBatchMean")) {
		return fmt.Errorf("tensor: %s: %w: reduction %d: want MeanReduction, SumReduction or NoReduction", op, ErrInvalid, c.Reduction)
	}
	if !(c.LabelSmoothing >= 0 && c.LabelSmoothing <= 1) {
		return fmt.Errorf("tensor: %s: %w: a label smoothing of %v: want 0 to 1", op, ErrInvalid, c.LabelSmoothing)
	}
	return nil
}

func listed(names []string) string {
	if len(names) == 0 {
		return " alone"
	}
	return " and " + strings.Join(names, ", ")
}
