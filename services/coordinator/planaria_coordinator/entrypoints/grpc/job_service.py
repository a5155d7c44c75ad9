"""JobService: the application's Jobs over gRPC."""
# ruff: noqa: N802 - the protos name the methods

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from planaria.api.coordinator.v1 import job_service_pb2 as pb
from planaria.api.coordinator.v1 import job_service_pb2_grpc
from planaria_coordinator.application.jobs.jobs import Jobs
from planaria_coordinator.entrypoints.grpc.convert import (
    from_struct,
    job_message,
    log_line_message,
    metrics_message,
    recovery_message,
)
from planaria_coordinator.entrypoints.streams import until_stopped
from planaria_coordinator.plan_messages import plan_message

Context = grpc.aio.ServicerContext[Any, Any]


class JobServicer(job_service_pb2_grpc.JobServiceServicer):
    """Serves `planaria.api.coordinator.v1.JobService`."""

    def __init__(self, jobs: Jobs, *, stopping: asyncio.Event) -> None:
        self._jobs = jobs
        self._stopping = stopping

    async def CreateJob(
        self, request: pb.CreateJobRequest, _context: Context
    ) -> pb.CreateJobResponse:
        submission = await self._jobs.create(
            from_struct(request.spec),
            request_id=request.request_id,
            dry_run=request.dry_run,
            resume_job_id=request.resume_job_id,
        )
        plan = None if submission.plan is None else plan_message(submission.plan)
        return pb.CreateJobResponse(job=job_message(submission.job), plan=plan)

    async def GetJob(self, request: pb.GetJobRequest, _context: Context) -> pb.GetJobResponse:
        return pb.GetJobResponse(job=job_message(await self._jobs.get(request.job_id)))

    async def ListJobs(self, request: pb.ListJobsRequest, _context: Context) -> pb.ListJobsResponse:
        page = await self._jobs.list(page_size=request.page_size, page_token=request.page_token)
        jobs = [job_message(job) for job in page.items]
        return pb.ListJobsResponse(jobs=jobs, next_page_token=page.next_page_token)

    async def CancelJob(
        self, request: pb.CancelJobRequest, _context: Context
    ) -> pb.CancelJobResponse:
        job = await self._jobs.cancel(request.job_id, request_id=request.request_id)
        return pb.CancelJobResponse(job=job_message(job))

    async def PauseJob(self, request: pb.PauseJobRequest, _context: Context) -> pb.PauseJobResponse:
        job = await self._jobs.pause(request.job_id, request_id=request.request_id)
        return pb.PauseJobResponse(job=job_message(job))

    async def ResumeJob(
        self, request: pb.ResumeJobRequest, _context: Context
    ) -> pb.ResumeJobResponse:
        job = await self._jobs.resume(request.job_id, request_id=request.request_id)
        return pb.ResumeJobResponse(job=job_message(job))

    async def GetJobPlan(
        self, request: pb.GetJobPlanRequest, _context: Context
    ) -> pb.GetJobPlanResponse:
        record = await self._jobs.plan(request.job_id)
        if record is None or record.plan is None:
            return pb.GetJobPlanResponse()
        return pb.GetJobPlanResponse(
            plan=plan_message(record.plan), generation=record.generation, reason=record.reason
        )

    async def ListJobMetrics(
        self, request: pb.ListJobMetricsRequest, _context: Context
    ) -> pb.ListJobMetricsResponse:
        page = await self._jobs.metrics(
            request.job_id, page_size=request.page_size, page_token=request.page_token
        )
        metrics = [metrics_message(each) for each in page.items]
        return pb.ListJobMetricsResponse(metrics=metrics, next_page_token=page.next_page_token)

    async def ListJobRecoveries(
        self, request: pb.ListJobRecoveriesRequest, _context: Context
    ) -> pb.ListJobRecoveriesResponse:
        page = await self._jobs.recoveries(
            request.job_id, page_size=request.page_size, page_token=request.page_token
        )
        recoveries = [recovery_message(each) for each in page.items]
        return pb.ListJobRecoveriesResponse(
            recoveries=recoveries, next_page_token=page.next_page_token
        )

    async def ListJobLogs(
        self, request: pb.ListJobLogsRequest, _context: Context
    ) -> pb.ListJobLogsResponse:
        page = await self._jobs.logs(
            request.job_id, page_size=request.page_size, page_token=request.page_token
        )
        lines = [log_line_message(line) for line in page.items]
        return pb.ListJobLogsResponse(lines=lines, next_page_token=page.next_page_token)

    async def WatchJob(
        self, request: pb.WatchJobRequest, _context: Context
    ) -> AsyncIterator[pb.WatchJobResponse]:
        views = self._jobs.watch(request.job_id)
        async for view in until_stopped(views, stopping=self._stopping):
            if view is not None:
                yield pb.WatchJobResponse(job=job_message(view.job), sequence=view.sequence)
