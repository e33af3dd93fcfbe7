package autograd_test

import (
	"io"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// exportedFunctions are the exported functions of the package.
var exportedFunctions = map[string]any{
	"Attached": autograd.Attached[autograd.Opener], "BatchFirst": autograd.BatchFirst, "Bidirectional": autograd.Bidirectional, "BuffersOf": autograd.BuffersOf, "Causal": autograd.Causal, "Checkpointed": autograd.Checkpointed, "ComputeDtype": autograd.ComputeDtype,
	"Dilation": autograd.Dilation, "DropoutBetween": autograd.DropoutBetween, "Dtype": autograd.Dtype, "Eps": autograd.Eps, "Gain": autograd.Gain, "Groups": autograd.Groups, "Hooked": autograd.Hooked[*testHook], "Init": autograd.Init, "InitConstant": autograd.InitConstant,
	"InitEye": autograd.InitEye, "InitKaimingNormal": autograd.InitKaimingNormal, "InitKaimingUniform": autograd.InitKaimingUniform, "InitNormal": autograd.InitNormal, "InitOrthogonal": autograd.InitOrthogonal,
	"InitTruncNormal": autograd.InitTruncNormal, "InitUniform": autograd.InitUniform, "InitXavierNormal": autograd.InitXavierNormal, "InitXavierUniform": autograd.InitXavierUniform, "Kernel": autograd.Kernel,
	"KeyDim": autograd.KeyDim, "LayerOf": autograd.LayerOf, "Layers": autograd.Layers, "LoadModel": autograd.LoadModel, "LoadStateDict": autograd.LoadStateDict, "Momentum": autograd.Momentum, "NameModules": autograd.NameModules,
	"NewAdagrad": autograd.NewAdagrad, "NewAdam": autograd.NewAdam, "NewAdamW": autograd.NewAdamW, "NewParallel": autograd.NewParallel, "NewParameter": autograd.NewParameter, "NewRMSprop": autograd.NewRMSprop, "NewSGD": autograd.NewSGD,
	"NewScheduler": autograd.NewScheduler, "NewTape": autograd.NewTape, "NoAffine": autograd.NoAffine, "NoBias": autograd.NoBias, "NoGrad": autograd.NoGrad, "NewOp": autograd.NewOp[misbehaving], "NoRunningStatistics": autograd.NoRunningStatistics,
	"NormalizedShape": autograd.NormalizedShape, "NotStrict": autograd.NotStrict, "Offloaded": autograd.Offloaded, "OffloadState": autograd.OffloadState, "CoreOf": autograd.CoreOf, "ModelState": autograd.ModelState, "MissingParameter": autograd.MissingParameter, "Own": autograd.Own[io.Closer], "StepRule": autograd.StepRule[tensor.SGD], "OutputPadding": autograd.OutputPadding, "Padding": autograd.Padding, "PaddingIndex": autograd.PaddingIndex,
	"ParametersOf": autograd.ParametersOf, "ReLUCell": autograd.ReLUCell, "SamePadding": autograd.SamePadding, "SaveModel": autograd.SaveModel, "Seed": autograd.Seed, "StateDict": autograd.StateDict, "Stride": autograd.Stride,
	"Upload": autograd.Upload[float64], "ValueDim": autograd.ValueDim,
}

// nilAllowed are arguments that may be nil, with the reason: of FUNCTION or TYPE.METHOD the one of
// that number, or of that type. The receiver is number 0.
var nilAllowed = map[string]string{
	"BuffersOf 1":            "a model of nothing has no buffers",
	"ParametersOf 1":         "a model of nothing has no parameters, which optimisers refuse",
	"LayerOf 1":              "Forward of the layer refuses: TestLayersOfNil",
	"Checkpointed 1":         "Forward of the layer refuses: TestLayersOfNil",
	"Offloaded 1":            "Forward of the layer refuses: TestLayersOfNil",
	"Offloaded 2":            "Forward of the layer refuses: TestLayersOfNil",
	"CheckpointPlan.Layer 2": "Forward of the layer refuses: TestLayersOfNil",
	"error":                  "there is no error",
	"Stage":                  "the state comes back",
	"Tape.Variable 1":        "the tape has not read it",
	"ModelState 1":           "there is no state",
	"Tape.Layer 1":           "the layer is in the tape's module",
	"Tape.Enter 1":           "the layer is in the tape's module",
	"Tape.EnterModule 1":     "the layer is in the tape's module",
	"MissingParameter 1":     "it is nil, as NewParameter says of it",
	"Parameter.SetGrad 1":    "there is no gradient then",
	"Named.SetGrad 1":        "there is no gradient then",
	"Identity.Forward 1":     "x is returned as it is",
	"Identity.Forward 2":     "x is returned as it is",
	"Tape.Func 4":            "the operation has no gradient",
	"Attached 1":             "no parameter has no attachment",
	"Hooked 1":               "no tape has no hooks",
	"Tape.Unhook 1":          "there are no such hooks",
	"Tape.Param 1":           "the layer has no such parameter",
	"Parameter.Detach 1":     "there is no such attachment",
	"Named.Detach 1":         "there is no such attachment",
	"Parameters.Offload 2":   "the parameters come back",
	"OffloadState 3":         "the state comes back",
	"RNN.Run 3":              "states of zeros",
	"GRU.Run 3":              "states of zeros",
	"LSTM.Run 3":             "states of zeros",
	"LSTM.Run 4":             "states of zeros",
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
	"LayerOption":            "options that are nil are left out",
	"InitOption":             "options that are nil are left out",
	"LoadOption":             "options that are nil are left out",
	"LossOption":             "options that are nil are left out",
}

// noNilReceiver are types whose methods a program can't call with nil by a mistake that this
// package could report.
var noNilReceiver = map[string]string{
	"Adagrad": "the promoted methods of a nil optimiser fail before they are called; Minimize, NewScheduler and Checkpoint refuse one",
	"Adam":    "as Adagrad", "RMSprop": "as Adagrad", "SGD": "as Adagrad",
	"Base": "as Adagrad", "Call": "Func makes it", "CheckpointPlan": "its zero value is ready to use", "Group": "the optimiser makes it", "Initializer": "Init never returns nil",
	"Parallel": "NewParallel returns an error with nil", "Scheduler": "NewScheduler returns an error with nil",
}
