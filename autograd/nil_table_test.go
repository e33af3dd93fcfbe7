package autograd_test

import (
	"io"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/tensor"
)

// exportedFunctions are those of the package and of the packages of layers, optimisers and
// features.
var exportedFunctions = map[string]any{
	"Attached": autograd.Attached[autograd.Opener], "DetectAnomaly": autograd.DetectAnomaly, "Hooked": autograd.Hooked[*testHook], "MissingParameter": autograd.MissingParameter,
	"NewOp": autograd.NewOp[misbehaving], "NewParameter": autograd.NewParameter, "NewTape": autograd.NewTape, "NoGrad": autograd.NoGrad,
	"Upload":              autograd.Upload[float64],
	"nn.AttentionDropout": nn.AttentionDropout, "nn.NewKVCache": nn.NewKVCache, "nn.NewLengths": nn.NewLengths,
	"nn.BatchFirst": nn.BatchFirst, "nn.Bidirectional": nn.Bidirectional, "nn.BuffersOf": nn.BuffersOf, "nn.Causal": nn.Causal,
	"nn.ComputeDtype": nn.ComputeDtype, "nn.Dilation": nn.Dilation, "nn.DropoutBetween": nn.DropoutBetween, "nn.Dtype": nn.Dtype, "nn.Eps": nn.Eps,
	"nn.Gain": nn.Gain, "nn.Groups": nn.Groups, "nn.Init": nn.Init, "nn.InitConstant": nn.InitConstant, "nn.InitEye": nn.InitEye,
	"nn.InitKaimingNormal": nn.InitKaimingNormal, "nn.InitKaimingUniform": nn.InitKaimingUniform, "nn.InitNormal": nn.InitNormal,
	"nn.InitOrthogonal": nn.InitOrthogonal, "nn.InitTruncNormal": nn.InitTruncNormal, "nn.InitUniform": nn.InitUniform,
	"nn.InitXavierNormal": nn.InitXavierNormal, "nn.InitXavierUniform": nn.InitXavierUniform, "nn.Kernel": nn.Kernel, "nn.KeyDim": nn.KeyDim,
	"nn.LayerOf": nn.LayerOf, "nn.Layers": nn.Layers, "nn.LoadModel": nn.LoadModel, "nn.LoadWeights": nn.LoadWeights, "nn.ModelState": nn.ModelState,
	"nn.Momentum": nn.Momentum, "nn.NameModules": nn.NameModules, "nn.NoAffine": nn.NoAffine, "nn.NoBias": nn.NoBias,
	"nn.NoRunningStatistics": nn.NoRunningStatistics, "nn.NewStateCopy": nn.NewStateCopy, "nn.NormalizedShape": nn.NormalizedShape, "nn.OutputPadding": nn.OutputPadding, "nn.Own": nn.Own[io.Closer], "nn.Padding": nn.Padding, "nn.PaddingIndex": nn.PaddingIndex,
	"nn.ParametersOf": nn.ParametersOf, "nn.ReLUCell": nn.ReLUCell, "nn.Partial": nn.Partial, "nn.Rename": nn.Rename, "nn.SamePadding": nn.SamePadding, "nn.SaveModel": nn.SaveModel, "nn.Seed": nn.Seed,
	"nn.StateDict": nn.StateDict, "nn.Stride": nn.Stride, "nn.Transpose": nn.Transpose, "nn.ValueDim": nn.ValueDim, "nn.Affine": nn.Affine, "nn.With": nn.With[*nn.Linear],
	"offload.Activations": offload.Activations, "offload.Layer": offload.Layer, "offload.Parameters": offload.Parameters, "offload.State": offload.State,
	"optim.ClipGradNorm": optim.ClipGradNorm, "optim.ClipGradNormOf": optim.ClipGradNormOf, "optim.ClipGradValue": optim.ClipGradValue,
	"optim.CoreOf": optim.CoreOf, "optim.InBackward": optim.InBackward, "optim.Minimize": optim.Minimize, "optim.NewAdagrad": optim.NewAdagrad,
	"optim.NewAdam": optim.NewAdam, "optim.NewAdamW": optim.NewAdamW, "optim.NewRMSprop": optim.NewRMSprop, "optim.NewSGD": optim.NewSGD,
	"optim.NewReduceLROnPlateau": optim.NewReduceLROnPlateau, "optim.NewScheduler": optim.NewScheduler, "optim.StepRule": optim.StepRule[tensor.SGD],
	"parallel.New":     parallel.New,
	"remat.Checkpoint": remat.Checkpoint, "remat.Layer": remat.Layer,
}

// nilAllowed are arguments that may be nil, with the reason: of FUNCTION or TYPE.METHOD the one of
// that number, or of that type. The receiver is number 0.
var nilAllowed = map[string]string{
	"nn.BuffersOf 1":         "a model of nothing has no buffers",
	"nn.ParametersOf 1":      "a model of nothing has no parameters, which optimisers refuse",
	"nn.LayerOf 1":           "Forward of the layer refuses: TestLayersOfNil",
	"nn.With 1":              "the function may have no use for it",
	"nn.With 2":              "Forward of the layer refuses: TestLayersOfNil",
	"remat.Layer 1":          "Forward of the layer refuses: TestLayersOfNil",
	"offload.Layer 1":        "Forward of the layer refuses: TestLayersOfNil",
	"offload.Layer 2":        "Forward of the layer refuses: TestLayersOfNil",
	"remat.Plan.Layer 2":     "Forward of the layer refuses: TestLayersOfNil",
	"error":                  "there is no error",
	"Stage":                  "the state comes back",
	"Tape.Variable 1":        "the tape has not read it",
	"nn.ModelState 1":        "there is no state",
	"nn.Rename 1":            "LoadWeights refuses: TestLoadWeightsRenames",
	"nn.Transpose 1":         "LoadWeights refuses: TestLoadWeightsRenames",
	"Tape.Layer 1":           "the layer is in the tape's module",
	"Tape.Enter 1":           "the layer is in the tape's module",
	"MissingParameter 1":     "it is nil, as NewParameter says of it",
	"Parameter.SetGrad 1":    "there is no gradient then",
	"Named.SetGrad 1":        "there is no gradient then",
	"Parameter.PathOf 1":     "nothing holds it",
	"Named.PathOf 1":         "nothing holds it",
	"nn.Identity.Forward 1":  "x is returned as it is",
	"nn.Identity.Forward 2":  "x is returned as it is",
	"Tape.Func 4":            "the operation has no gradient",
	"Attached 1":             "no parameter has no attachment",
	"Hooked 1":               "no tape has no hooks",
	"Tape.Unhook 1":          "there are no such hooks",
	"Tape.Param 1":           "the layer has no such parameter",
	"Parameter.Detach 1":     "there is no such attachment",
	"Named.Detach 1":         "there is no such attachment",
	"offload.Parameters 3":   "the parameters come back",
	"offload.State 3":        "the state comes back",
	"nn.RNN.Run 3":           "states of zeros",
	"nn.GRU.Run 3":           "states of zeros",
	"nn.LSTM.Run 3":          "states of zeros",
	"nn.LSTM.Run 4":          "states of zeros",
	"nn.RNN.RunPadded 4":     "states of zeros",
	"nn.GRU.RunPadded 4":     "states of zeros",
	"nn.LSTM.RunPadded 4":    "states of zeros",
	"nn.LSTM.RunPadded 5":    "states of zeros",
	"Tape.Linear 3":          "no bias",
	"Tape.LinearReLU 3":      "no bias",
	"Tape.Conv1d 3":          "no bias",
	"Tape.Conv2d 3":          "no bias",
	"Tape.ConvTranspose1d 3": "no bias",
	"Tape.ConvTranspose2d 3": "no bias",
	"Tape.BatchNorm 2":       "no weight",
	"Tape.BatchNorm 3":       "no bias",
	"Tape.LayerNorm 2":       "no weight",
	"Tape.LayerNorm 3":       "no bias",
	"Tape.GroupNorm 2":       "no weight",
	"Tape.GroupNorm 3":       "no bias",
	"Tape.RMSNorm 2":         "no weight",
	"Tape.AddLayerNorm 3":    "no weight",
	"Tape.AddLayerNorm 4":    "no bias",
	"Tape.AddRMSNorm 3":      "no weight",
	"optim.StepRule 1":       "a step of package tensor allocates nothing and looks at no context",
	"LayerOption":            "options that are nil are left out",
	"InitOption":             "options that are nil are left out",
	"LoadOption":             "options that are nil are left out",
	"LossOption":             "options that are nil are left out",
	"CategoricalOption":      "options that are nil are left out",
}

// noNilReceiver are types whose nil receivers this package can't report.
var noNilReceiver = map[string]string{
	"optim.Adagrad": "the promoted methods of a nil optimiser fail before they are called; Minimize, NewScheduler and Checkpoint refuse one",
	"optim.Adam":    "as Adagrad", "optim.RMSprop": "as Adagrad", "optim.SGD": "as Adagrad",
	"optim.Base": "as Adagrad", "Call": "Func makes it", "remat.Plan": "its zero value is ready to use", "optim.Group": "the optimiser makes it", "nn.Initializer": "Init never returns nil",
	"parallel.Parallel": "New returns an error with nil", "optim.Scheduler": "NewScheduler returns an error with nil",
	"optim.ReduceLROnPlateau": "NewReduceLROnPlateau returns an error with nil", "nn.StateCopy": "NewStateCopy never returns nil",
	"optim.Loop": "it is a struct that the program makes", "AnomalyError": "the tape makes it",
}
