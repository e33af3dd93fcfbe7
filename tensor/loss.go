package tensor

import (
	"fmt"
	"slices"
	"strings"
)

// LossOption changes a loss from PyTorch's default, the mean over all elements. An option that the
// loss does not take is an error.
type LossOption func(*LossConfig)

// LossConfig holds the options of a loss.
type LossConfig struct {
	Reduction      Reduction
	IgnoreIndex    int     // rows with this label don't count; -100 by default
	LabelSmoothing float64 // between 0 and 1
	LogTarget      bool    // the target of KLDivLoss is logarithms
	// Weight holds the weights of classes (classes), or of elements for BCEWithLogits; PosWeight is
	// for BCEWithLogits. They broadcast to the weighed elements and are constants. They have the
	// dtype of x, except that weights of classes are float32 if the logits have 16 bits. nil: 1.
	Weight, PosWeight *Tensor
	// RowSums is for [Gradients.CrossEntropyGrad] alone: the sums of the same logits that
	// [Gradients.CrossEntropyWithGrad] returned. They are float64 in the labels' shape followed by
	// 2: a row's greatest logit, and the sum of exp(logit - greatest). nil: it computes them again,
	// as the host always does.
	RowSums *Tensor

	given []string // names of the options
}

// Reduction is how a loss combines the losses of the elements.
type Reduction uint8

const (
	MeanReduction      Reduction = iota // the mean, weighted by the weights of the classes
	SumReduction                        // the sum of all elements
	NoReduction                         // one loss per element
	BatchMeanReduction                  // the sum over the size of the first dimension (KLDivLoss)
)

// ReduceMean is the option for the mean, which is the default (reduction="mean").
func ReduceMean(c *LossConfig) { c.reduce(MeanReduction) }

// ReduceSum is the option for the sum (reduction="sum").
func ReduceSum(c *LossConfig) { c.reduce(SumReduction) }

// ReduceNone is the option for one loss per element (reduction="none").
func ReduceNone(c *LossConfig) { c.reduce(NoReduction) }

// ReduceBatchMean is KLDivLoss's option for the sum divided by the size of the first dimension
// (reduction="batchmean").
func ReduceBatchMean(c *LossConfig) { c.reduce(BatchMeanReduction) }

// LogTarget is KLDivLoss's option for a target of logarithms (log_target=True).
func LogTarget(c *LossConfig) {
	if c != nil {
		c.LogTarget, c.given = true, append(c.given, "LogTarget")
	}
}

// IgnoreIndex is the option to ignore rows with this label, instead of rows with -100.
func IgnoreIndex(label int) LossOption {
	return func(c *LossConfig) { c.IgnoreIndex, c.given = label, append(c.given, "IgnoreIndex") }
}

// LabelSmoothing is the option to spread this part of each label, between 0 and 1, evenly over the
// classes.
func LabelSmoothing(amount float64) LossOption {
	return func(c *LossConfig) { c.LabelSmoothing, c.given = amount, append(c.given, "LabelSmoothing") }
}

// Weight is the option for weights of classes, or of elements for BCEWithLogits.
func Weight(w *Tensor) LossOption {
	return func(c *LossConfig) { c.Weight, c.given = w, append(c.given, "Weight") }
}

// PosWeight is the option for weights of the positive targets of BCEWithLogits.
func PosWeight(w *Tensor) LossOption {
	return func(c *LossConfig) { c.PosWeight, c.given = w, append(c.given, "PosWeight") }
}

func (c *LossConfig) reduce(r Reduction) {
	if c != nil {
		c.Reduction = r
	}
}

// NewLossConfig returns the default configuration, changed by the options.
func NewLossConfig(options ...LossOption) LossConfig {
	if len(options) == 0 {
		return LossConfig{IgnoreIndex: -100} // stays off the heap
	}
	c := LossConfig{IgnoreIndex: -100}
	for _, o := range options {
		if o != nil {
			o(&c)
		}
	}
	return c
}

// Option returns an option that sets the whole configuration.
func (c LossConfig) Option() LossOption { return func(to *LossConfig) { *to = c } }

// Check returns an error for an option that the loss does not take, or for a wrong value.
func (c *LossConfig) Check(op string, takes ...string) error {
	for _, name := range c.given {
		if !slices.Contains(takes, name) {
			return fmt.Errorf("tensor: %s: %w: it has no option %s; it takes a reduction%s", op, ErrInvalid, name, listed(takes))
		}
	}
	if c.RowSums != nil && !slices.Contains(takes, "RowSums") {
		return fmt.Errorf("tensor: %s: %w: only CrossEntropyGrad takes RowSums", op, ErrInvalid)
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
