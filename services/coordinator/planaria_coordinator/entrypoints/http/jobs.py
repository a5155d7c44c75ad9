"""/api/v1/jobs"""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from planaria import models
from planaria_coordinator.application.ports import GenerationRecord, Page
from planaria_coordinator.domain.job.job import Job, LogLine, StepMetrics
from planaria_coordinator.domain.recovery.recovery_record import Recovery
from planaria_coordinator.entrypoints.http import lists
from planaria_coordinator.entrypoints.http.dependencies import JobsDep, PageDep

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

_NO_CHANGE = models.Change()


@router.post(
    "",
    status_code=201,
    response_model=models.Job,
    response_description="The job; Location names it.",
    responses={200: {"model": models.DryRun, "description": "What a dry run would start."}},
)
async def create_job(
    submission: models.JobSubmission, jobs: JobsDep, response: Response
) -> Job | JSONResponse:
    """Submit a job, or only plan it. Repeating a request_id returns the same job."""
    created = await jobs.create(
        submission.spec,
        request_id=submission.request_id,
        dry_run=submission.dry_run,
        resume_job_id=submission.resume_job_id,
    )
    if submission.dry_run:
        return JSONResponse(models.DryRun.model_validate(created).model_dump(mode="json"))
    response.headers["Location"] = f"{router.prefix}/{created.job.id}"
    return created.job


@router.get("", response_model=lists.JobList)
async def list_jobs(jobs: JobsDep, page: PageDep) -> Page[Job]:
    """List jobs, the newest first; 100 by default."""
    return await jobs.list(page)


@router.get("/{job_id}", response_model=models.Job)
async def get_job(job_id: str, jobs: JobsDep) -> Job:
    """Read a job."""
    return await jobs.get(job_id)


@router.post("/{job_id}:cancel", response_model=models.Job)
async def cancel_job(job_id: str, jobs: JobsDep, change: models.Change = _NO_CHANGE) -> Job:
    """End a job; its parameters are not written."""
    return await jobs.cancel(job_id, request_id=change.request_id)


@router.post("/{job_id}:pause", response_model=models.Job)
async def pause_job(job_id: str, jobs: JobsDep, change: models.Change = _NO_CHANGE) -> Job:
    """Pause a job after a commit; its engines keep their state."""
    return await jobs.pause(job_id, request_id=change.request_id)


@router.post("/{job_id}:resume", response_model=models.Job)
async def resume_job(job_id: str, jobs: JobsDep, change: models.Change = _NO_CHANGE) -> Job:
    """Continue a paused job."""
    return await jobs.resume(job_id, request_id=change.request_id)


@router.get("/{job_id}/plan", response_model=models.JobPlan)
async def get_job_plan(job_id: str, jobs: JobsDep) -> GenerationRecord | models.JobPlan:
    """Read the plan of the job's newest generation that has one."""
    return await jobs.plan(job_id) or models.JobPlan(plan=None, generation=0, reason="")


@router.get("/{job_id}/metrics", response_model=lists.MetricsList)
async def list_job_metrics(job_id: str, jobs: JobsDep, page: PageDep) -> Page[StepMetrics]:
    """List the committed steps, the oldest first; 1,000 by default."""
    return await jobs.metrics(job_id, page)


@router.get("/{job_id}/recoveries", response_model=lists.RecoveryList)
async def list_job_recoveries(job_id: str, jobs: JobsDep, page: PageDep) -> Page[Recovery]:
    """List the recoveries, the oldest first; 100 by default."""
    return await jobs.recoveries(job_id, page)


@router.get("/{job_id}/logs", response_model=lists.LogLineList)
async def list_job_logs(job_id: str, jobs: JobsDep, page: PageDep) -> Page[LogLine]:
    """List lines that the job's engines wrote, the oldest first; 1,000 by default."""
    return await jobs.logs(job_id, page)
