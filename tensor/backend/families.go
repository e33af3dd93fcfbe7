package backend

import "strings"

// family is a group of operations with the same operands, plan and parameters.
type family struct {
	name string // of the constant; "" if the family has one operation and no constant
	// operands names the operands in the order of Call.Args and, after |, those of each item of
	// Call.List. A name starts with = if the operand is overwritten, and with + if it is updated;
	// it ends with ? if the operand may be absent.
	operands string
	// ops is the operations in the order of the kernels' codes, by their names in errors, launches
	// and profiles.
	ops string
	// base is the operation that the runtime queues, together with others, instead of a fusion that
	// a backend does not support.
	base string
	// rounds is set for a fusion in which later parts read results that earlier parts round. So in
	// a dtype of 16 bits it is not upcast as a whole.
	rounds bool
}

// families is the table of operations. A comment beside or above a row names the plan or parameters
// of a call, types of package plan: a pointer is Call.Plan, the others are Call.Params.
var families = []family{
	// Elementwise. Parameters of functions are in C; a kernel rounds them to the call's dtype.
	{name: "Map", operands: "=y x", ops: functions},
	{name: "MapGrad", operands: "=dx dy saved", ops: slopes},
	// *plan.Broadcast
	{name: "Zip", operands: "=y a b", ops: "add; sub; mul; div; relu grad; tanh grad; sigmoid grad; sqrt grad; square grad; broadcast; maximum; minimum"},
	{name: "Bias", operands: "=y x bias", ops: "add bias; add bias, relu"},
	{operands: "=dx =dbias dy y", ops: "relu bias grad", base: "relu grad"},
	{operands: "=y condition a? b?", ops: "where"}, // *plan.Meeting
	// *plan.Meeting
	{name: "ExtremeGrad", operands: "=da dy a b", ops: "minimum grad; maximum grad"},
	{operands: "=y x seed?", ops: "dropout"}, // plan.Drop
	{operands: "=y x weight", ops: "prelu"},  // plan.Channels
	{operands: "=dx dy x weight", ops: "prelu grad"},
	{operands: "=dweight dy x", ops: "prelu weight grad"},
	// *plan.Broadcast; y is uint8
	{name: "Compare", operands: "=y a b", ops: "equal; not equal; less; less equal"},
	{operands: "=y a b", ops: "pow"}, // *plan.Broadcast
	// *plan.Meeting
	{name: "PowGrad", operands: "=d dy a b", ops: "pow base grad; pow exponent grad"},

	// Random numbers. A seed operand replaces the seed of the parameters.
	{name: "Noise", operands: "=y seed?", ops: "uniform; normal"}, // plan.Noise
	{operands: "=y p seed?", ops: "bernoulli"},                    // plan.Random
	{operands: "=y =spare seed?", ops: "randperm"},                // plan.Random
	{operands: "=index x seed?", ops: "categorical"},              // plan.Categorical

	// Elements that move. C[0] is the value of fill and pad.
	{operands: "=y", ops: "fill"},
	{operands: "=y x", ops: "convert"},
	{operands: "+y x", ops: "place"},                                // *plan.Placement
	{operands: "=y x", ops: "pad", base: "fill"},                    // plan.Pad
	{operands: "=y x", ops: "transpose"},                            // plan.Matrix
	{operands: "=y x index +fault", ops: "take"},                    // plan.Take
	{operands: "=order =spare index", ops: "sort index"},            // plan.Sort
	{operands: "+dx dy order", ops: "take grad"},                    // plan.TakeGrad
	{operands: "=dx dy index", ops: "scan grad", base: "take grad"}, // plan.TakeGrad
	// plan.TakeGrad
	{operands: "+dx dy index", ops: "scan grad onto", base: "take grad", rounds: true},
	{operands: "=y x index +fault", ops: "gather"}, // *plan.Gather
	// *plan.Gather
	{operands: "+dx dy index +fault", ops: "gather grad"},
	// *plan.Gather; C[0] is the value set without src
	{operands: "+y src? index +fault", ops: "scatter"},
	{operands: "=index x", ops: "sort"}, // plan.Order
	{operands: "=y x", ops: "resample"}, // *plan.Resample
	{operands: "=dx dy", ops: "resample grad"},
	{operands: "=y x", ops: "triangle"}, // plan.Triangle

	// Reductions.
	{operands: "=y x", ops: "sum"}, // *plan.Reduction; C[0] is the divisor
	// *plan.Reduction; C[0] is the correction, or which norm
	{name: "Statistic", operands: "=y x", ops: "amax; max; logsumexp; var; vector norm; amin"},
	{name: "StatisticGrad", operands: "=dx dy x y?", ops: "amax grad; max grad; logsumexp grad; var grad; vector norm grad"},
	{name: "RowSoftmax", operands: "=y x", ops: "softmax; log softmax"}, // plan.Rows
	{name: "RowSoftmaxGrad", operands: "=dx dy y", ops: "softmax grad; log softmax grad"},
	{name: "Extreme", operands: "=index x", ops: "argmax; argmin"},
	{operands: "=y x", ops: "cumsum"}, // plan.Rows; C[0] is 1 for sums from the end
	// plan.Entropy; fault is a plan.Fault
	{operands: "=loss logits labels weights? +fault", ops: "cross entropy"},
	{operands: "=loss =dlogits logits labels weights? +fault", ops: "cross entropy with grad", base: "cross entropy"},
	// A row of sums, in float64, is its greatest logit and the sum of exp(logit - greatest).
	{operands: "=loss =sums logits labels weights? +fault", ops: "cross entropy with sums", base: "cross entropy"},
	{operands: "=dlogits logits labels weights? dloss sums?", ops: "cross entropy grad"},
	// plan.Loss; C is delta and the divisor
	{name: "Loss", operands: "=loss x target weight? positive?", ops: "mse loss; l1 loss; huber loss; binary cross entropy; kl div loss; kl div log loss"},
	{name: "LossGrad", operands: "=dx dloss x target weight? positive?", ops: "mse loss grad; l1 loss grad; huber loss grad; binary cross entropy grad; kl div loss grad; kl div log loss grad"},
	// plan.Entropy, without smoothing; fault is a plan.Fault
	{operands: "=loss x labels weights? +fault", ops: "nll loss"},
	{operands: "=dx labels weights? dloss", ops: "nll loss grad"},

	// Normalisation.
	{operands: "=y =stats x weight? bias?", ops: "normalize"}, // *plan.RowNorm
	{operands: "=sum =y =stats x other weight? bias?", ops: "add normalize", base: "normalize", rounds: true},
	{operands: "=dx =dweight? =dbias? dy x weight? stats", ops: "normalize grad"},
	{operands: "+dx =dweight? =dbias? dy x weight? stats", ops: "normalize grad onto", base: "normalize grad", rounds: true},
	{operands: "=dweight? =dbias? dy x stats", ops: "normalize weight grad"},
	// *plan.BatchNorm
	{operands: "=y =stats x weight? bias? mean variance batches?", ops: "batch norm"},
	{operands: "=y =stats x weight? bias? +mean? +variance? +batches?", ops: "batch norm training"},
	{operands: "=dx? =dweight? =dbias? dy x weight? stats", ops: "batch norm grad"},

	// Products and operations made of them. The plan of a batch of products is a *plan.Placement.
	{operands: "=y a b", ops: "matmul"}, // plan.Product
	{name: "Linear", operands: "=y x weight bias", ops: "matmul, add bias; matmul, add bias, relu", base: "matmul"},
	{operands: "=dw dy x =dbias", ops: "matmul sums", base: "matmul"},
	{operands: "=dx dy weight y", ops: "matmul masked", base: "matmul"},
	// *plan.Conv
	{name: "Convolution", operands: "=y x weight bias?", ops: "conv; conv input grad"},
	{operands: "=dweight dy x", ops: "conv weight grad"},
	{name: "MaxPooling", operands: "=y =index x", ops: "max pool"}, // *plan.Pool
	{operands: "=dx dy index", ops: "max pool grad"},
	{name: "AveragePooling", operands: "=y x", ops: "avg pool; avg pool grad"},
	{operands: "=y =sums q k v mask?", ops: "attention"}, // *plan.Attention
	{operands: "=dq =dk =dv =dmask? dy y sums q k v mask?", ops: "attention grad"},
	// plan.Cell
	{name: "Cell", operands: "+gates hidden? bias? h? c? =newh =newc? =kept?", ops: "rnn tanh cell; rnn relu cell; lstm cell; gru cell"},
	{name: "CellGrad", operands: "+gates =dhidden? dy dh? +carry? h? c? newh newc? kept?", ops: "rnn tanh cell grad; rnn relu cell grad; lstm cell grad; gru cell grad"},
	// plan.Recurrence
	{name: "Recurrence", operands: "+gates weight bias? h? c? =newh =newc? =kept?", ops: "rnn tanh; rnn relu; lstm; gru", base: "matmul", rounds: true},
	// before and after are the operands of a step's gradient: an LSTM's cell states, a GRU's states
	// and kept, an RNN's states.
	{name: "RecurrenceGrad", operands: "+gates =dhidden? =dh =carry? dy lastdh? lastdc? weight first? before after", ops: "rnn tanh grad; rnn relu grad; lstm grad; gru grad", base: "matmul", rounds: true},

	// Optimisers, norms and clips.
	// plan.Numbers, the shared numbers of the rule; each item of Own begins with its own numbers
	{name: "Step", operands: "|+p g +state? +state? +state?", ops: rules},
	{operands: "|x =part", ops: "norm"},               // C[0] is which norm
	{operands: "=total +parts", ops: "norm of norms"}, // plan.NormTotal; C[0] is which norm
	{operands: "norm|+x", ops: "clip"},                // C[0] is the maximum
	{operands: "|+x", ops: "bound"},                   // C[0] is the maximum
}

// Families returns the names of the families' constants, "" for those without one, and the
// families' operations. It is for package gen.
func Families() (names []string, ops [][]string) {
	for _, f := range families {
		names, ops = append(names, f.name), append(ops, strings.Split(f.ops, "; "))
	}
	return names, ops
}
