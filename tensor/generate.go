package tensor

//go:generate go run ./internal/gen
