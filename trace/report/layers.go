package report

// Layer is a part of a model, as package forecast makes them. The figures are its own, without
// those of the parts inside. Bytes are the most that it held at once in a step.
type Layer struct {
	Name string `json:"name"`           // the path in the model; "": the model itself
	Type string `json:"type,omitempty"` // such as "Linear"
	// Output is the first result of its last operation, such as "float32[128,10]".
	Output          string `json:"output,omitempty"`
	Parameters      int    `json:"parameters"` // elements; those of tied weights count once
	ParameterBytes  int64  `json:"parameter_bytes"`
	ActivationBytes int64  `json:"activation_bytes"`
	GradientBytes   int64  `json:"gradient_bytes"`
	StateBytes      int64  `json:"state_bytes"` // of the optimiser
	WorkspaceBytes  int64  `json:"workspace_bytes"`
}
