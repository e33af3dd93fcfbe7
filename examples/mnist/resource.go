package main

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// describe is what the telemetry is of: the program, its process and machine, as the SDK finds them, and what the
// environment says of them (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES), which comes last and so wins. The command line is
// left out: it may be nobody else's business.
func describe(ctx context.Context) (*resource.Resource, error) {
	r, err := resource.New(ctx,
		resource.WithSchemaURL(semconv.SchemaURL),
		resource.WithService(),
		resource.WithAttributes(semconv.ServiceName("mnist")),
		resource.WithTelemetrySDK(),
		resource.WithHost(), resource.WithHostID(), resource.WithOSType(), resource.WithContainer(),
		resource.WithProcessPID(), resource.WithProcessExecutableName(),
		resource.WithProcessRuntimeName(), resource.WithProcessRuntimeVersion(),
		resource.WithFromEnv(),
	)
	if errors.Is(err, resource.ErrPartialResource) || errors.Is(err, resource.ErrSchemaURLConflict) {
		return r, nil // what was not found is missing, such as host.id in a container
	}
	return r, err
}
